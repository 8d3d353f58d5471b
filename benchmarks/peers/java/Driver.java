import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * Drives one peer through its own Java client: a command a line on standard input, an answer a
 * line on standard output, "ok" with figures or "failed" with words.
 *
 * <pre>
 * fresh NAME                                         ok
 * append SIZE IN_FLIGHT SECONDS RECORDS_MAX          ok RECORDS SECONDS P50_MS P99_MS
 * read COUNT                                         ok SECONDS
 * tail SIZE BATCH TICK_S TICKS TICKS_NOT_COUNTED     ok P50_MS P99_MS
 * </pre>
 */
abstract class Driver {
    /** Standard output is for answers; what libraries log there goes to standard error. */
    private static final PrintStream ANSWERS = System.out;

    static {
        System.setOut(System.err);
    }

    static final long ANSWER_TIMEOUT_S = 60;
    static final long READ_TIMEOUT_S = 120;
    static final long TAIL_TIMEOUT_S = 30;

    /** Told once for each record: null if it was acknowledged, else why it was not. */
    interface Answer {
        void tell(Throwable why);
    }

    /** Make a new, empty log and let go of the one before. */
    abstract void fresh(String name) throws Exception;

    /** Append one record; never waits for its answer. */
    abstract void send(byte[] value, Answer answer) throws Exception;

    /** Send what was gathered, if the client gathers. */
    void flush() throws Exception {}

    /** Give the first records of the log to `take`, until `enough` says so. */
    abstract void read(Consumer<ByteBuffer> take, Enough enough) throws Exception;

    /** Begin to follow the tail in this thread, after calling `ready`; until `enough`. */
    abstract void follow(Runnable ready, Consumer<ByteBuffer> take, Enough enough)
            throws Exception;

    /** Make the log, which is fresh, into one for readers at the tail, if that is another. */
    void expectTail() throws Exception {}

    abstract void close() throws Exception;

    /** Whether so many records have come, or it took too long. */
    static final class Enough {
        private final long count;
        private final long until;
        private long began = System.nanoTime();
        private long ended;
        long taken;

        Enough(long count, long timeoutS) {
            this.count = count;
            this.until = System.nanoTime() + TimeUnit.SECONDS.toNanos(timeoutS);
        }

        boolean is() throws TimeoutException {
            if (taken >= count) {
                ended = System.nanoTime();
                return true;
            }
            if (System.nanoTime() > until) {
                throw new TimeoutException((count - taken) + " of " + count + " did not come");
            }
            return false;
        }

        long left() {
            return count - taken;
        }

        /** The reader is open: what comes from here on is what is timed. */
        void begin() {
            began = System.nanoTime();
        }

        double seconds() {
            return (ended - began) / 1e9;
        }
    }

    void serve() throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        ANSWERS.println("ok ready");
        String line;
        while ((line = commands.readLine()) != null) {
            String[] words = line.trim().split(" ");
            try {
                ANSWERS.println("ok " + obey(words));
            } catch (Exception failure) {
                ANSWERS.println("failed " + String.valueOf(failure).replace('\n', ' '));
            }
            ANSWERS.flush();
        }
        close();
    }

    private String obey(String[] words) throws Exception {
        switch (words[0]) {
            case "fresh":
                fresh(words[1]);
                return "";
            case "append":
                return append(number(words[1]), number(words[2]),
                        Double.parseDouble(words[3]), Long.parseLong(words[4]));
            case "read":
                return readAll(Long.parseLong(words[1]));
            case "tail":
                return tail(number(words[1]), number(words[2]), Double.parseDouble(words[3]),
                        number(words[4]), number(words[5]));
            default:
                throw new IllegalArgumentException("no command: " + words[0]);
        }
    }

    private static int number(String word) {
        return Integer.parseInt(word);
    }

    private String append(int size, int inFlight, double seconds, long recordsMax)
            throws Exception {
        byte[] value = new byte[size];
        new Random(7).nextBytes(value);
        Semaphore window = new Semaphore(inFlight);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        AtomicInteger slots = new AtomicInteger();
        AtomicInteger answered = new AtomicInteger();
        long[] latencies = new long[(int) Math.min(recordsMax, 4_000_000)];
        long began = System.nanoTime();
        long until = began + (long) (seconds * 1e9);
        long now = began;
        int sent = 0;
        while (now < until && sent < latencies.length && failure.get() == null) {
            if (!window.tryAcquire(ANSWER_TIMEOUT_S, TimeUnit.SECONDS)) {
                throw new TimeoutException("no answer");
            }
            // All that was answered meanwhile is taken with it, so that a wake-up serves many.
            int room = Math.min(1 + window.drainPermits(), latencies.length - sent);
            now = System.nanoTime();
            for (int each = 0; each < room; each++) {
                long at = System.nanoTime();
                send(value, why -> {
                    if (why != null) {
                        failure.compareAndSet(null, why);
                    }
                    latencies[slots.getAndIncrement()] = System.nanoTime() - at;
                    // Last, so that who sees all answered sees all latencies too.
                    answered.incrementAndGet();
                    window.release();
                });
                sent++;
            }
            flush();
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(ANSWER_TIMEOUT_S);
        while (answered.get() < sent) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException((sent - answered.get()) + " records without an answer");
            }
            // Waits for the next answer, whoever's it is.
            if (window.tryAcquire(1, TimeUnit.MILLISECONDS)) {
                window.drainPermits();
            }
        }
        double took = (System.nanoTime() - began) / 1e9;
        if (failure.get() != null) {
            throw new IllegalStateException("an append failed: " + failure.get());
        }
        return String.format(Locale.ROOT, "%d %.6f %s", sent, took, percentiles(latencies, sent));
    }

    private static String percentiles(long[] nanos, int count) {
        long[] ordered = Arrays.copyOf(nanos, count);
        Arrays.sort(ordered);
        double p50 = ordered[Math.max(0, (int) Math.ceil(0.5 * count) - 1)] / 1e6;
        double p99 = ordered[Math.max(0, (int) Math.ceil(0.99 * count) - 1)] / 1e6;
        return String.format(Locale.ROOT, "%.6f %.6f", p50, p99);
    }

    private String readAll(long count) throws Exception {
        Enough enough = new Enough(count, READ_TIMEOUT_S);
        read(value -> {
            byte[] copy = new byte[value.remaining()];
            value.get(copy);
            enough.taken++;
        }, enough);
        return String.format(Locale.ROOT, "%.6f", enough.seconds());
    }

    private String tail(int size, int batch, double tickS, int ticks, int ticksNotCounted)
            throws Exception {
        expectTail();
        int count = batch * ticks;
        long[] lags = new long[count];
        Enough enough = new Enough(count, (long) (ticks * tickS) + TAIL_TIMEOUT_S);
        AtomicReference<Exception> failure = new AtomicReference<>();
        Semaphore ready = new Semaphore(0);
        Thread reader = new Thread(() -> {
            try {
                follow(ready::release, value -> {
                    if (enough.taken < count) {
                        lags[(int) enough.taken++] = System.nanoTime() - value.getLong();
                    }
                }, enough);
            } catch (Exception why) {
                failure.set(why);
                ready.release();
            }
        }, "reader");
        reader.start();
        ready.acquire();
        long began = System.nanoTime();
        AtomicReference<Throwable> refused = new AtomicReference<>();
        for (int tick = 0; tick < ticks; tick++) {
            long due = began + (long) (tick * tickS * 1e9);
            long wait = due - System.nanoTime();
            if (wait > 0) {
                TimeUnit.NANOSECONDS.sleep(wait);
            }
            for (int each = 0; each < batch; each++) {
                byte[] value = ByteBuffer.allocate(size).putLong(due).array();
                send(value, why -> {
                    if (why != null) {
                        refused.compareAndSet(null, why);
                    }
                });
            }
            flush();
        }
        reader.join();
        if (failure.get() != null) {
            throw failure.get();
        }
        if (refused.get() != null) {
            throw new IllegalStateException("an append failed: " + refused.get());
        }
        int skipped = ticksNotCounted * batch;
        return percentiles(Arrays.copyOfRange(lags, skipped, count), count - skipped);
    }
}
