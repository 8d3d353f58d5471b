import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.ByteBufferDeserializer;

/** Kafka's own client: topics of one partition, three replicas. Arguments: servers, flush. */
final class KafkaDriver extends Driver {
    private static final int CALL_TIMEOUT_S = 30;
    private static final Duration POLL = Duration.ofMillis(100);

    private final String servers;
    private final boolean flushes;
    private final Admin admin;
    private final KafkaProducer<byte[], byte[]> producer;
    private String topic;

    KafkaDriver(String servers, boolean flushes) {
        this.servers = servers;
        this.flushes = flushes;
        this.admin = Admin.create(settings());
        Properties settings = settings();
        settings.put("acks", "all");
        // Sent at once; what gathers while five requests are on the way goes together.
        settings.put("linger.ms", "0");
        settings.put("batch.size", Integer.toString(256 << 10));
        settings.put("buffer.memory", Long.toString(320L << 20));
        settings.put("max.request.size", Integer.toString(4 << 20));
        settings.put("compression.type", "none");
        this.producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        return settings;
    }

    @Override
    void fresh(String name) throws Exception {
        if (topic != null) {
            admin.deleteTopics(List.of(topic)).all().get(CALL_TIMEOUT_S, TimeUnit.SECONDS);
        }
        NewTopic made = new NewTopic(name, 1, (short) 3);
        if (flushes) {
            made.configs(Map.of("flush.messages", "1"));
        }
        admin.createTopics(List.of(made)).all().get(CALL_TIMEOUT_S, TimeUnit.SECONDS);
        topic = name;
        producer.partitionsFor(name);
    }

    @Override
    void send(byte[] value, Answer answer) {
        producer.send(new ProducerRecord<>(topic, 0, null, value),
                (written, failure) -> answer.tell(failure));
    }

    private KafkaConsumer<ByteBuffer, ByteBuffer> consumer() {
        Properties settings = settings();
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "earliest");
        settings.put("max.poll.records", "10000");
        settings.put("max.partition.fetch.bytes", Integer.toString(8 << 20));
        KafkaConsumer<ByteBuffer, ByteBuffer> made = new KafkaConsumer<>(
                settings, new ByteBufferDeserializer(), new ByteBufferDeserializer());
        TopicPartition partition = new TopicPartition(topic, 0);
        made.assign(List.of(partition));
        made.seekToBeginning(List.of(partition));
        return made;
    }

    @Override
    void read(Consumer<ByteBuffer> take, Enough enough) throws Exception {
        try (KafkaConsumer<ByteBuffer, ByteBuffer> consumer = consumer()) {
            consumer.position(new TopicPartition(topic, 0), Duration.ofSeconds(CALL_TIMEOUT_S));
            enough.begin();
            while (!enough.is()) {
                for (ConsumerRecord<ByteBuffer, ByteBuffer> each : consumer.poll(POLL)) {
                    take.accept(each.value());
                }
            }
        }
    }

    @Override
    void follow(Runnable ready, Consumer<ByteBuffer> take, Enough enough) throws Exception {
        try (KafkaConsumer<ByteBuffer, ByteBuffer> consumer = consumer()) {
            consumer.position(new TopicPartition(topic, 0), Duration.ofSeconds(CALL_TIMEOUT_S));
            ready.run();
            while (!enough.is()) {
                for (ConsumerRecord<ByteBuffer, ByteBuffer> each : consumer.poll(POLL)) {
                    take.accept(each.value());
                }
            }
        }
    }

    @Override
    void close() {
        producer.close(Duration.ofSeconds(5));
        admin.close(Duration.ofSeconds(5));
    }

    public static void main(String[] arguments) throws Exception {
        new KafkaDriver(arguments[0], arguments[1].equals("flush")).serve();
    }
}
