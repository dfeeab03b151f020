// The work of observe as a Kafka Streams topology: decode each sample, compare it with the node's last state in an in-memory store, and
// write what changed; exactly once (v2), one thread. Arguments: bootstrap, schema file, samples, and "changelog" for the store as
// Streams makes it (it survives a restart) or "none" for one that would be lost. Prints "<samples> <seconds>" after each hundred
// thousand samples.
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;

public class ObserveStreams {
  static final class Watch implements Processor<String, byte[], String, byte[]> {
    static long seen = 0, begun = 0;
    final GenericDatumReader<GenericRecord> reader;
    final long until;
    BinaryDecoder decoder;
    GenericRecord sample;
    ProcessorContext<String, byte[]> context;
    KeyValueStore<String, byte[]> states;

    Watch(Schema schema, long until) {
      reader = new GenericDatumReader<>(schema);
      this.until = until;
    }

    @Override
    public void init(ProcessorContext<String, byte[]> context) {
      this.context = context;
      this.states = context.getStateStore("states");
    }

    @Override
    public void process(Record<String, byte[]> message) {
      if (seen == 0) begun = System.nanoTime();
      byte[] body = message.value();
      try {
        decoder = DecoderFactory.get().binaryDecoder(body, 5, body.length - 5, decoder);
        sample = reader.read(sample, decoder);
      } catch (java.io.IOException e) {
        throw new RuntimeException(e);
      }
      long counter = (Long) sample.get("counter");
      int healthy = (Integer) sample.get("cards_healthy");
      String node = message.key();
      byte[] last = states.get(node);
      // State: counter and healthy cards. Doubles and old samples are dropped; a change of healthy cards is told.
      if (last == null || java.nio.ByteBuffer.wrap(last).getLong() < counter) {
        byte[] now = java.nio.ByteBuffer.allocate(12).putLong(counter).putInt(healthy).array();
        states.put(node, now);
        if (last == null || java.nio.ByteBuffer.wrap(last).getInt(8) != healthy) context.forward(message);
      }
      if (++seen % 100_000 == 0 || seen == until) {
        System.out.println(seen + " " + (System.nanoTime() - begun) / 1e9);
        System.out.flush();
      }
    }
  }

  public static void main(String[] args) throws Exception {
    Schema schema = new Schema.Parser().parse(Files.readString(Path.of(args[1])));
    long until = Long.parseLong(args[2]);
    Properties p = new Properties();
    p.put(StreamsConfig.APPLICATION_ID_CONFIG, "peer-streams-" + System.nanoTime());
    p.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    p.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    p.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
    p.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    p.put("auto.offset.reset", "earliest");
    p.put("max.poll.records", 10_000);
    p.put("fetch.max.bytes", 50 << 20);
    p.put("max.partition.fetch.bytes", 8 << 20);
    p.put("compression.type", "lz4");
    Topology topology = new Topology();
    topology.addSource("samples", Serdes.String().deserializer(), Serdes.ByteArray().deserializer(), "lockstep.resource-telemetry");
    topology.addProcessor("watch", () -> new Watch(schema, until), "samples");
    StoreBuilder<KeyValueStore<String, byte[]>> store =
        Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("states"), Serdes.String(), Serdes.ByteArray());
    topology.addStateStore(args[3].equals("changelog") ? store : store.withLoggingDisabled(), "watch");
    topology.addSink("changes", "peer-changes", Serdes.String().serializer(), Serdes.ByteArray().serializer(), "watch");
    KafkaStreams streams = new KafkaStreams(topology, p);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
    System.in.read();
    System.exit(0);
  }
}
