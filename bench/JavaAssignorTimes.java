import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * Times Kafka's own assignors around the public assign, in the same situations as ours.
 *
 * Arguments: assignor, topics, partitions of each, members, whether one member wants the first topic only. Prints one
 * line for each situation, "name wall-seconds cpu-seconds", as it is done, as the reader may time out.
 */
public class JavaAssignorTimes {
    private static ConsumerPartitionAssignor assignor;
    private static Cluster cluster;

    public static void main(String[] args) {
        int topicCount = Integer.parseInt(args[1]);
        int partitions = Integer.parseInt(args[2]);
        int members = Integer.parseInt(args[3]);
        boolean divergent = Boolean.parseBoolean(args[4]);
        assignor = args[0].equals("range") ? new RangeAssignor()
            : args[0].equals("roundrobin") ? new RoundRobinAssignor() : new CooperativeStickyAssignor();
        Node node = new Node(0, "localhost", 1);
        Node[] nodes = {node};
        List<PartitionInfo> infos = new ArrayList<>();
        List<String> topics = new ArrayList<>();
        for (int topic = 0; topic < topicCount; topic++) {
            String name = String.format("topic-%04d", topic);
            topics.add(name);
            for (int number = 0; number < partitions; number++) {
                infos.add(new PartitionInfo(name, number, node, nodes, nodes));
            }
        }
        cluster = new Cluster("bench", List.of(node), infos, Set.of(), Set.of());
        Map<String, List<String>> wanted = new HashMap<>();
        for (int member = 0; member < members; member++) {
            boolean odd = divergent && member == members - 1;
            wanted.put(String.format("member-%05d", member), odd ? topics.subList(0, 1) : topics);
        }
        Map<String, Assignment> fresh = timed("fresh", wanted, Map.of());
        if (args[0].equals("cooperative-sticky")) {
            Map<String, List<String>> left = new HashMap<>(wanted);
            left.remove("member-00007");
            timed("leave", left, fresh);
            wanted.put("member-00007-new", topics);
            timed("join", wanted, fresh);
        }
    }

    private static Map<String, Assignment> timed(
        String situation, Map<String, List<String>> wanted, Map<String, Assignment> before) {
        Map<String, Subscription> subscriptions = new HashMap<>();
        wanted.forEach((member, topics) -> {
            Assignment had = before.get(member);
            subscriptions.put(member, had == null
                ? new Subscription(topics)
                : new Subscription(topics, (ByteBuffer) null, had.partitions(), 1, Optional.empty()));
        });
        long cpu = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        long wall = System.nanoTime();
        Map<String, Assignment> plan = assignor.assign(cluster, new GroupSubscription(subscriptions)).groupAssignment();
        double seconds = (System.nanoTime() - wall) / 1e9;
        double busy = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - cpu) / 1e9;
        System.out.println(situation + " " + seconds + " " + busy);
        System.out.flush();
        return plan;
    }
}
