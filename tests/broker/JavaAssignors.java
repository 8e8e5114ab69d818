import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/**
 * The foreign oracle: Kafka's own assignors, asked one question per line in JSON, answering one line each.
 *
 * A question names the assignor, the partitions of each topic (with the racks of each, where known) and the members.
 * The answer is a list of plans: what the assignor gives, and what it gives next when every member owns just that.
 * An assignor that raises is answered for with {"raised": ...}, and one that does not end (the sticky pair moves a
 * partition to and fro for ever in some groups) with {"endless": seconds}. A question with "remember" is answered with the user data of a member that was given those partitions.
 */
public class JavaAssignors {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** For a plan that takes a millisecond. */
    private static final int PATIENCE_S = 20;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            JsonNode question = JSON.readTree(line);
            out.println(JSON.writeValueAsString(answer(question)));
        }
        out.flush();
    }

    private static Object answer(JsonNode question) throws Exception {
        FutureTask<Object> task =
            new FutureTask<>(() -> question.has("remember") ? remembered(question) : plans(question));
        // A daemon, so that one without an end does not keep the process from its own.
        Thread thread = new Thread(task, "answer");
        thread.setDaemon(true);
        thread.start();
        try {
            return task.get(PATIENCE_S, TimeUnit.SECONDS);
        } catch (TimeoutException endless) {
            return Map.of("endless", PATIENCE_S);
        } catch (ExecutionException failed) {
            Throwable cause = failed.getCause();
            if (cause instanceof IllegalStateException
                || cause instanceof IndexOutOfBoundsException
                || cause instanceof NullPointerException) {
                return Map.of("raised", cause.toString());
            }
            throw failed;
        }
    }

    private static ConsumerPartitionAssignor assignor(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            default: return new CooperativeStickyAssignor();
        }
    }

    private static String remembered(JsonNode question) {
        ConsumerPartitionAssignor assignor = assignor(question.get("assignor").asText());
        List<TopicPartition> given = partitions(question.get("remember"));
        int generation = question.get("generation").asInt();
        assignor.onAssignment(
            new Assignment(given), new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(Set.of("unused"));
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static List<Map<String, Map<String, List<Integer>>>> plans(JsonNode question) {
        Cluster cluster = cluster(question);
        Map<String, Subscription> members = new HashMap<>();
        for (Map.Entry<String, JsonNode> member : question.get("members").properties()) {
            members.put(member.getKey(), subscription(member.getValue()));
        }
        List<Map<String, Map<String, List<Integer>>>> answers = new ArrayList<>();
        int rounds = question.has("rounds") ? question.get("rounds").asInt() : 1;
        for (int round = 0; round < rounds; round++) {
            Map<String, Assignment> plan = assignor(question.get("assignor").asText())
                .assign(cluster, new GroupSubscription(members)).groupAssignment();
            answers.add(readable(plan));
            Map<String, Subscription> next = new HashMap<>();
            int generation = 1000 + round;
            members.forEach((name, before) -> {
                Subscription after = new Subscription(
                    before.topics(), null, plan.get(name).partitions(), generation, before.rackId());
                after.setGroupInstanceId(before.groupInstanceId());
                next.put(name, after);
            });
            members = next;
        }
        return answers;
    }

    private static Subscription subscription(JsonNode member) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        ByteBuffer data = member.hasNonNull("data")
            ? ByteBuffer.wrap(Base64.getDecoder().decode(member.get("data").asText())) : null;
        List<TopicPartition> owned = member.has("owned") ? partitions(member.get("owned")) : List.of();
        int generation = member.has("generation") ? member.get("generation").asInt() : -1;
        Subscription subscription =
            new Subscription(topics, data, owned, generation, text(member.get("rack")));
        subscription.setGroupInstanceId(text(member.get("instance")));
        return subscription;
    }

    private static Optional<String> text(JsonNode value) {
        return value == null || value.isNull() ? Optional.empty() : Optional.of(value.asText());
    }

    private static List<TopicPartition> partitions(JsonNode byTopic) {
        List<TopicPartition> partitions = new ArrayList<>();
        for (Map.Entry<String, JsonNode> topic : byTopic.properties()) {
            topic.getValue().forEach(number -> partitions.add(new TopicPartition(topic.getKey(), number.asInt())));
        }
        return partitions;
    }

    private static Cluster cluster(JsonNode question) {
        Map<String, Node> nodes = new TreeMap<>();
        Node nowhere = new Node(0, "localhost", 1);
        List<PartitionInfo> infos = new ArrayList<>();
        for (Map.Entry<String, JsonNode> topic : question.get("partitions").properties()) {
            JsonNode racks = question.hasNonNull("racks") ? question.get("racks").get(topic.getKey()) : null;
            for (int number = 0; number < topic.getValue().asInt(); number++) {
                List<Node> replicas = new ArrayList<>();
                if (racks != null) {
                    racks.get(number).forEach(rack -> replicas.add(nodes.computeIfAbsent(
                        rack.asText(), name -> new Node(nodes.size() + 1, "localhost", 1, name))));
                }
                if (replicas.isEmpty()) {
                    replicas.add(nowhere);
                }
                Node[] all = replicas.toArray(new Node[0]);
                infos.add(new PartitionInfo(topic.getKey(), number, all[0], all, all));
            }
        }
        List<Node> known = new ArrayList<>(nodes.values());
        known.add(nowhere);
        return new Cluster("oracle", known, infos, Set.of(), Set.of());
    }

    private static Map<String, Map<String, List<Integer>>> readable(Map<String, Assignment> plan) {
        Map<String, Map<String, List<Integer>>> shares = new HashMap<>();
        plan.forEach((member, assignment) -> {
            Map<String, List<Integer>> share = shares.computeIfAbsent(member, m -> new HashMap<>());
            for (TopicPartition tp : assignment.partitions()) {
                share.computeIfAbsent(tp.topic(), t -> new ArrayList<>()).add(tp.partition());
            }
        });
        return shares;
    }
}
