import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Kafka's own consumer as a recording member, with the rows of the other recorded members. */
public class JavaMember implements ConsumerRebalanceListener {
    private static final Map<String, Class<?>> ASSIGNORS = Map.of(
        "range", RangeAssignor.class,
        "roundrobin", RoundRobinAssignor.class,
        "sticky", StickyAssignor.class,
        "cooperative-sticky", CooperativeStickyAssignor.class);
    private static final long COMMIT_EVERY_NS = 200_000_000L;

    private final FileOutputStream log;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> done = new HashMap<>();
    private volatile boolean ending;
    private int commits;

    private JavaMember(Map<String, String> words) throws IOException {
        log = new FileOutputStream(words.get("log"), true);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", words.get("bootstrap"));
        settings.put("group.id", words.get("group"));
        settings.put("session.timeout.ms", words.get("session"));
        settings.put("heartbeat.interval.ms", words.get("heartbeat"));
        settings.put("metadata.max.age.ms", "2000");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("partition.assignment.strategy", List.of(words.get("assignors").split(",")).stream()
            .map(name -> ASSIGNORS.get(name).getName()).collect(Collectors.joining(",")));
        if (words.containsKey("instance")) {
            settings.put("group.instance.id", words.get("instance"));
        }
        consumer = new KafkaConsumer<>(settings);
        consumer.subscribe(List.of(words.get("topic")), this);
    }

    /** Arguments are {@code name=value}: bootstrap, group, topic, log, assignors, session, heartbeat, members, instance. */
    public static void main(String[] args) throws Exception {
        Map<String, String> words = new HashMap<>();
        for (String arg : args) {
            int at = arg.indexOf('=');
            words.put(arg.substring(0, at), arg.substring(at + 1));
        }
        List<JavaMember> members = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < Integer.parseInt(words.get("members")); number++) {
            JavaMember member = new JavaMember(words);
            members.add(member);
            threads.add(new Thread(member::run));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            members.forEach(JavaMember::end);
            for (Thread thread : threads) {
                try {
                    thread.join(20_000);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            }
        }));
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
    }

    /** Sets a flag too: the wakeup may interrupt a commit inside a callback, and then the poll continues. */
    private void end() {
        ending = true;
        consumer.wakeup();
    }

    private void run() {
        long committed = System.nanoTime();
        try {
            while (!ending) {
                note(consumer.poll(Duration.ofMillis(200)));
                if (System.nanoTime() - committed >= COMMIT_EVERY_NS && !done.isEmpty()) {
                    committed = System.nanoTime();
                    Map<TopicPartition, OffsetAndMetadata> going = new HashMap<>(done);
                    int number = asked(going);
                    consumer.commitAsync(going, (offsets, error) -> answered(number, going, error));
                }
            }
        } catch (WakeupException told) {
            // The end: revocation commits the rest.
        } catch (RuntimeException error) {
            row("[\"x\",\"" + error.getClass().getSimpleName() + "\"]");
        } finally {
            consumer.close();
        }
    }

    private void note(ConsumerRecords<byte[], byte[]> records) {
        for (TopicPartition part : records.partitions()) {
            List<ConsumerRecord<byte[], byte[]>> run = records.records(part);
            long first = run.get(0).offset();
            long last = run.get(run.size() - 1).offset();
            String now = now();
            row("[\"h\"," + part.partition() + "," + generation() + "," + first + "," + last + "," + now + "," + now + "]");
            done.put(part, new OffsetAndMetadata(last + 1));
        }
    }

    private int asked(Map<TopicPartition, OffsetAndMetadata> going) {
        Map<Integer, Long> offsets = new TreeMap<>();
        going.forEach((part, what) -> offsets.put(part.partition(), what.offset()));
        String listed = offsets.entrySet().stream()
            .map(each -> "\"" + each.getKey() + "\":" + each.getValue()).collect(Collectors.joining(","));
        row("[\"c\"," + commits + "," + generation() + ",{" + listed + "}," + now() + "]");
        return commits++;
    }

    private void answered(int number, Map<TopicPartition, OffsetAndMetadata> going, Exception error) {
        String told = error == null ? "null" : "\"" + error.getClass().getSimpleName() + "\"";
        row("[\"k\"," + number + "," + now() + "," + told + "]");
        if (error == null) {
            // Refused offsets, and those handed out since, are committed again.
            going.forEach(done::remove);
        }
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        called("a", partitions);
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Map<TopicPartition, OffsetAndMetadata> going = new HashMap<>(done);
        going.keySet().retainAll(partitions);
        if (!going.isEmpty()) {
            int number = asked(going);
            try {
                consumer.commitSync(going, Duration.ofSeconds(10));
                answered(number, going, null);
            } catch (RuntimeException error) {
                answered(number, going, error);
            }
        }
        partitions.forEach(done::remove);
        called("r", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        partitions.forEach(done::remove);
        called("l", partitions);
    }

    private void called(String kind, Collection<TopicPartition> partitions) {
        String numbers = partitions.stream().map(part -> "" + part.partition()).collect(Collectors.joining(","));
        row("[\"" + kind + "\",[" + numbers + "]," + generation() + "," + now() + "]");
    }

    private int generation() {
        return consumer.groupMetadata().generationId();
    }

    /** Seconds of the machine's monotonic clock, which other processes read too. */
    private static String now() {
        return String.format("%.6f", System.nanoTime() / 1e9);
    }

    private void row(String json) {
        try {
            log.write((json + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }
}
