import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.internals.AbstractPartitionAssignor;
import org.apache.kafka.common.TopicPartition;

/** Reads one cluster per line as JSON and prints the plan of Kafka's own assignor as JSON: the foreign oracle. */
public class JavaAssignors {
    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            JsonNode question = json.readTree(line);
            Map<String, Integer> partitions = new HashMap<>();
            for (Map.Entry<String, JsonNode> topic : question.get("partitions").properties()) {
                partitions.put(topic.getKey(), topic.getValue().asInt());
            }
            Map<String, Subscription> members = new HashMap<>();
            for (Map.Entry<String, JsonNode> member : question.get("members").properties()) {
                List<String> topics = new ArrayList<>();
                member.getValue().get("topics").forEach(topic -> topics.add(topic.asText()));
                Subscription subscription = new Subscription(topics);
                JsonNode instance = member.getValue().get("instance");
                subscription.setGroupInstanceId(instance.isNull() ? Optional.empty() : Optional.of(instance.asText()));
                members.put(member.getKey(), subscription);
            }
            boolean range = question.get("assignor").asText().equals("range");
            AbstractPartitionAssignor assignor = range ? new RangeAssignor() : new RoundRobinAssignor();
            Map<String, Map<String, List<Integer>>> plan = new HashMap<>();
            assignor.assign(partitions, members).forEach((member, owned) -> {
                Map<String, List<Integer>> share = plan.computeIfAbsent(member, m -> new HashMap<>());
                for (TopicPartition tp : owned) {
                    share.computeIfAbsent(tp.topic(), t -> new ArrayList<>()).add(tp.partition());
                }
            });
            out.println(json.writeValueAsString(plan));
        }
        out.flush();
    }
}
