import com.netflix.concurrency.limits.Limiter;
import com.netflix.concurrency.limits.limit.Gradient2Limit;
import com.netflix.concurrency.limits.limit.WindowedLimit;
import com.netflix.concurrency.limits.limiter.AbstractPartitionedLimiter;
import com.netflix.concurrency.limits.limiter.SimpleLimiter;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.LockSupport;

/**
 * Backend P with Netflix's Gradient2 in it: one thread serves connections, others sleep.
 *
 * <p>Arguments: port, mean work in microseconds, workers, seed, and 1 for four classes as partitions.
 */
public final class Server {
    private static final String[] CLASSES = {"critical", "write", "read", "test"};
    private static final ByteBuffer SERVED = answer("200 OK", "xx");
    private static final ByteBuffer SHED = answer("503 Service Unavailable", "");

    private final Selector selector;
    private final ConcurrentLinkedQueue<Done> done = new ConcurrentLinkedQueue<>();
    private final ExecutorService workers;
    private final Random random;
    private final double meanNanos;
    private final WindowedLimit limit = WindowedLimit.newBuilder().build(Gradient2Limit.newDefault());
    private final Limiter<String> limiter;

    private record Done(SelectionKey key, Limiter.Listener permit) {}

    private static final class PartitionBuilder
            extends AbstractPartitionedLimiter.Builder<PartitionBuilder, String> {
        @Override
        protected PartitionBuilder self() {
            return this;
        }
    }

    private Server(int port, double meanNanos, int threads, long seed, boolean hasClasses) throws Exception {
        this.meanNanos = meanNanos;
        random = new Random(seed);
        workers = Executors.newFixedThreadPool(threads);
        limiter = hasClasses
                ? new PartitionBuilder()
                        .partitionResolver(name -> name)
                        .partition("critical", 0.4)
                        .partition("write", 0.3)
                        .partition("read", 0.2)
                        .partition("test", 0.1)
                        .limit(limit)
                        .build()
                : SimpleLimiter.<String>newBuilder().limit(limit).build();
        selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", port), 1_024);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
    }

    private void run() throws Exception {
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    accept((ServerSocketChannel) key.channel());
                } else if (key.isReadable()) {
                    read(key);
                }
            }
            selector.selectedKeys().clear();
            for (Done next = done.poll(); next != null; next = done.poll()) {
                next.permit.onSuccess();
                write(next.key, SERVED);
            }
        }
    }

    private void accept(ServerSocketChannel listener) throws Exception {
        SocketChannel client = listener.accept();
        if (client == null) {
            return;
        }
        client.configureBlocking(false);
        client.socket().setTcpNoDelay(true);
        client.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(4_096));
    }

    /** A request is small and comes in one piece, or in a few. */
    private void read(SelectionKey key) throws Exception {
        ByteBuffer input = (ByteBuffer) key.attachment();
        int length;
        try {
            length = ((SocketChannel) key.channel()).read(input);
        } catch (java.io.IOException broken) {
            length = -1;
        }
        if (length < 0 || !input.hasRemaining()) {
            key.cancel();
            key.channel().close();
            return;
        }
        int end = input.position();
        if (end < 4 || input.getInt(end - 4) != 0x0d0a0d0a) {
            return;
        }
        String path = new String(input.array(), 5, 8, StandardCharsets.US_ASCII);
        input.clear();
        serve(key, path.substring(0, path.indexOf(' ') < 0 ? path.length() : path.indexOf(' ')));
    }

    private void serve(SelectionKey key, String path) throws Exception {
        if (path.startsWith("limit")) {
            write(key, answer("200 OK", String.valueOf(limit.getLimit())));
            return;
        }
        Optional<Limiter.Listener> permit = limiter.acquire(path);
        if (permit.isEmpty()) {
            write(key, SHED);
            return;
        }
        long nanos = (long) (-Math.log(1.0 - random.nextDouble()) * meanNanos);
        workers.execute(() -> {
            long end = System.nanoTime() + nanos;
            for (long left = nanos; left > 0; left = end - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            done.add(new Done(key, permit.get()));
            selector.wakeup();
        });
    }

    private static void write(SelectionKey key, ByteBuffer answer) throws Exception {
        try {
            // An answer this small fits into the buffer of a connection that has no other.
            ((SocketChannel) key.channel()).write(answer.duplicate());
        } catch (java.io.IOException broken) {
            key.cancel();
            key.channel().close();
        }
    }

    private static ByteBuffer answer(String status, String body) {
        String text = "HTTP/1.1 " + status + "\r\ncontent-length: " + body.length() + "\r\n\r\n" + body;
        return ByteBuffer.wrap(text.getBytes(StandardCharsets.US_ASCII));
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        double mean = Double.parseDouble(arguments[1]) * 1_000;
        int workers = Integer.parseInt(arguments[2]);
        new Server(port, mean, workers, Long.parseLong(arguments[3]), arguments[4].equals("1")).run();
    }
}
