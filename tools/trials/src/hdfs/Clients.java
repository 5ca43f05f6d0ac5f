import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Four clients write files to HDFS and read them back. Prints a line a second: files written and read, and failures, of each. */
public class Clients {
    static final int CLIENTS = 4;
    /** Files of each client; older ones are replaced. */
    static final int MOST_FILES = 60;

    public static void main(String[] args) throws Exception {
        URI uri = URI.create(args[0]);
        long end = System.currentTimeMillis() + Integer.parseInt(args[1]) * 1000L;
        AtomicIntegerArray written = new AtomicIntegerArray(CLIENTS);
        AtomicIntegerArray read = new AtomicIntegerArray(CLIENTS);
        AtomicIntegerArray failed = new AtomicIntegerArray(CLIENTS);
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < CLIENTS; number++) {
            final int client = number;
            Thread thread = new Thread(() -> {
                try (FileSystem fs = FileSystem.newInstance(uri, new Configuration())) {
                    Random random = new Random(client);
                    for (int turn = 0; System.currentTimeMillis() < end; turn++) {
                        try {
                            write(fs, client, turn % MOST_FILES);
                            written.incrementAndGet(client);
                            verify(fs, client, random.nextInt(Math.min(turn + 1, MOST_FILES)));
                            read.incrementAndGet(client);
                        } catch (Exception error) {
                            failed.incrementAndGet(client);
                            System.err.println("client " + client + ": " + error);
                        }
                    }
                } catch (Exception error) {
                    failed.incrementAndGet(client);
                    System.err.println("client " + client + ": " + error);
                }
            });
            thread.start();
            threads.add(thread);
        }
        while (System.currentTimeMillis() < end) {
            Thread.sleep(1000);
            StringBuilder line = new StringBuilder();
            for (int client = 0; client < CLIENTS; client++) {
                line.append(written.get(client) + " " + read.get(client) + " " + failed.get(client) + " ");
            }
            System.out.println(line.toString().trim());
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    static byte[] content(int client, int file) {
        Random random = new Random(client * 1_000_003L + file);
        byte[] bytes = new byte[200_000 + random.nextInt(800_000)];
        random.nextBytes(bytes);
        return bytes;
    }

    static Path path(int client, int file) {
        return new Path("/client-" + client + "/" + file);
    }

    static void write(FileSystem fs, int client, int file) throws Exception {
        try (FSDataOutputStream out = fs.create(path(client, file), true)) {
            out.write(content(client, file));
            out.hsync();
        }
    }

    static void verify(FileSystem fs, int client, int file) throws Exception {
        byte[] wanted = content(client, file);
        byte[] found = new byte[wanted.length];
        try (FSDataInputStream in = fs.open(path(client, file))) {
            in.readFully(0, found);
        }
        if (!Arrays.equals(wanted, found)) {
            throw new IllegalStateException("file " + file + " has other content");
        }
    }
}
