import java.nio.ByteBuffer;
import java.util.ArrayDeque;
import java.util.Enumeration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.bookkeeper.client.AsyncCallback.ReadCallback;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;

/**
 * BookKeeper's own client: ledgers of ensemble 3, write quorum 3. Arguments: ZooKeeper's address
 * and the ack quorum; or the address and "init", which makes the cluster's metadata.
 */
final class BookKeeperDriver extends Driver {
    private static final byte[] PASSWORD = {};
    private static final int COPIES = 3;
    /** Entries of one read, so many of which are on the way. */
    private static final int READ_BYTES = 1 << 20;
    private static final int READ_ENTRIES = 1000;
    private static final int READS = 4;
    private static final long WAIT_MS = 1000;
    private static final long EMPTY_WAIT_MS = 1;

    private final BookKeeper client;
    private final BookKeeper tailClient;
    private final int ackQuorum;
    private LedgerHandle ledger;

    BookKeeperDriver(String zookeeper, int ackQuorum) throws Exception {
        this.client = BookKeeper.forConfig(settings(zookeeper)).build();
        // Tells readers what is confirmed where no next entry carries it to them.
        this.tailClient = BookKeeper.forConfig(
                settings(zookeeper).setExplictLacInterval(1)).build();
        this.ackQuorum = ackQuorum;
    }

    private static ClientConfiguration settings(String zookeeper) {
        ClientConfiguration settings = new ClientConfiguration();
        settings.setMetadataServiceUri("zk+hierarchical://" + zookeeper + "/ledgers");
        settings.setAddEntryTimeout(30);
        settings.setReadEntryTimeout(30);
        settings.setThrottleValue(0);
        return settings;
    }

    @Override
    void fresh(String name) throws Exception {
        replaceLedger(client);
    }

    @Override
    void expectTail() throws Exception {
        replaceLedger(tailClient);
    }

    private void replaceLedger(BookKeeper by) throws Exception {
        if (ledger != null) {
            ledger.close();
            client.deleteLedger(ledger.getId());
        }
        ledger = by.createLedger(COPIES, COPIES, ackQuorum, DigestType.CRC32C, PASSWORD);
    }

    @Override
    void send(byte[] value, Answer answer) {
        ledger.asyncAddEntry(value, (code, handle, entry, context) -> answer.tell(
                code == BKException.Code.OK ? null : BKException.create(code)), null);
    }

    @Override
    void read(Consumer<ByteBuffer> take, Enough enough) throws Exception {
        long left = enough.left();
        LedgerHandle reader = client.openLedgerNoRecovery(
                ledger.getId(), DigestType.CRC32C, PASSWORD);
        try {
            enough.begin();
            long size = Math.max(1, ledger.getLength() / Math.max(1, left));
            int run = (int) Math.max(1, Math.min(READ_ENTRIES, READ_BYTES / size));
            ArrayDeque<CompletableFuture<Enumeration<LedgerEntry>>> waiting = new ArrayDeque<>();
            long next = 0;
            while (next < left || !waiting.isEmpty()) {
                while (next < left && waiting.size() < READS) {
                    long last = Math.min(left, next + run) - 1;
                    waiting.add(entries(reader, next, last));
                    next = last + 1;
                }
                Enumeration<LedgerEntry> some =
                        waiting.poll().get(READ_TIMEOUT_S, TimeUnit.SECONDS);
                while (some.hasMoreElements()) {
                    take.accept(ByteBuffer.wrap(some.nextElement().getEntry()));
                }
            }
            if (!enough.is()) {
                throw new IllegalStateException(enough.left() + " entries are not there");
            }
        } finally {
            reader.close();
        }
    }

    private static CompletableFuture<Enumeration<LedgerEntry>> entries(
            LedgerHandle reader, long first, long last) {
        CompletableFuture<Enumeration<LedgerEntry>> answer = new CompletableFuture<>();
        ReadCallback done = (code, handle, entries, context) -> {
            if (code == BKException.Code.OK) {
                answer.complete(entries);
            } else {
                answer.completeExceptionally(BKException.create(code));
            }
        };
        reader.asyncReadUnconfirmedEntries(first, last, done, null);
        return answer;
    }

    @Override
    void follow(Runnable ready, Consumer<ByteBuffer> take, Enough enough) throws Exception {
        LedgerHandle reader = client.openLedgerNoRecovery(
                ledger.getId(), DigestType.CRC32C, PASSWORD);
        try {
            ready.run();
            long next = 0;
            long firstBy = System.nanoTime() + TimeUnit.SECONDS.toNanos(TAIL_TIMEOUT_S);
            while (!enough.is()) {
                CompletableFuture<LastConfirmedAndEntry> asked =
                        reader.readLastAddConfirmedAndEntryAsync(next, WAIT_MS, true);
                // Waits at a bookie until the entry is confirmed, and brings it.
                try (LastConfirmedAndEntry told = asked.get(TAIL_TIMEOUT_S, TimeUnit.SECONDS)) {
                    if (told.hasEntry()) {
                        take.accept(told.getEntry().getEntryNioBuffer());
                        next++;
                    }
                    long confirmed = told.getLastAddConfirmed();
                    if (confirmed >= next) {
                        Enumeration<LedgerEntry> some = entries(reader, next, confirmed)
                                .get(READ_TIMEOUT_S, TimeUnit.SECONDS);
                        while (some.hasMoreElements()) {
                            take.accept(ByteBuffer.wrap(some.nextElement().getEntry()));
                        }
                        next = confirmed + 1;
                    }
                } catch (ExecutionException error) {
                    // No bookie has heard of a ledger before its first entry. Those that are
                    // offered first are not counted.
                    boolean isEmpty = next == 0
                            && error.getCause() instanceof BKException.BKNoSuchLedgerExistsException;
                    if (!isEmpty || System.nanoTime() > firstBy) {
                        throw error;
                    }
                    Thread.sleep(EMPTY_WAIT_MS);
                }
            }
        } finally {
            reader.close();
        }
    }

    @Override
    void close() throws Exception {
        tailClient.close();
        client.close();
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments[1].equals("init")) {
            ServerConfiguration settings = new ServerConfiguration();
            settings.setMetadataServiceUri("zk+hierarchical://" + arguments[0] + "/ledgers");
            if (!BookKeeperAdmin.initNewCluster(settings)) {
                throw new IllegalStateException("the cluster's metadata could not be made");
            }
            return;
        }
        new BookKeeperDriver(arguments[0], Integer.parseInt(arguments[1])).serve();
    }
}
