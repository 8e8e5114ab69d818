import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.utils.Utils;

/** Reads group names, one a line as hexadecimal UTF-8; writes hash and partition as the broker computes them. */
public class JavaGroupPartitions {
    public static void main(String[] args) throws Exception {
        int partitions = Integer.parseInt(args[0]);
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String group = new String(HexFormat.of().parseHex(line), StandardCharsets.UTF_8);
            System.out.println(group.hashCode() + " " + Utils.abs(group.hashCode()) % partitions);
        }
    }
}
