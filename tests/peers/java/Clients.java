// spymemcached and xmemcached through what an application does, over text and binary.
// Usage: java -cp 'DIRECTORY OF JARS/*' Clients.java PORT.

import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Future;
import net.rubyeye.xmemcached.GetsResponse;
import net.rubyeye.xmemcached.XMemcachedClientBuilder;
import net.rubyeye.xmemcached.command.BinaryCommandFactory;
import net.rubyeye.xmemcached.command.TextCommandFactory;
import net.spy.memcached.CASResponse;
import net.spy.memcached.CASValue;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;

public class Clients {
    static final long TIMEOUT = 20_000;

    static void same(Object wanted, Object got) {
        if (!Objects.deepEquals(wanted, got)) {
            throw new AssertionError("wanted " + wanted + ", got " + got);
        }
    }

    interface Get {
        Object get() throws Exception;
    }

    static void untilGone(Get item) throws Exception {
        for (long end = System.currentTimeMillis() + TIMEOUT; item.get() != null; ) {
            same(true, System.currentTimeMillis() < end);
        }
    }

    static byte[] large() {
        byte[] large = new byte[900_000];
        for (int i = 0; i < large.length; i++) {
            // Does not compress: both clients would.
            large[i] = (byte) ((i * 2_654_435_761L) >>> 13);
        }
        return large;
    }

    static void spymemcached(InetSocketAddress address, Protocol protocol) throws Exception {
        var factory = new ConnectionFactoryBuilder().setProtocol(protocol).setOpTimeout(TIMEOUT);
        var client = new MemcachedClient(factory.build(), List.of(address));
        same(true, client.flush().get());
        same(Map.of(address, "1.6.45").values().toString(), client.getVersions().values().toString());
        same(true, client.set("key", 600, "value").get());
        same("value", client.get("key"));
        same(false, client.add("key", 600, "other").get());
        same(false, client.replace("none", 600, "x").get());
        CASValue<Object> got = client.gets("key");
        same(CASResponse.OK, client.cas("key", got.getCas(), "swapped"));
        same(CASResponse.EXISTS, client.cas("key", got.getCas(), "again"));
        same(CASResponse.NOT_FOUND, client.cas("none", got.getCas(), "x"));
        same(true, client.append("key", "!").get());
        same(true, client.prepend("key", ">").get());
        same(">swapped!", client.get("key"));
        same(10L, client.incr("n", 5, 10));
        same(15L, client.incr("n", 5));
        same(0L, client.decr("n", 20));
        same(true, client.touch("key", 60).get());
        // Flags carry the type.
        Map<String, Object> values = new HashMap<>(
            Map.of("int", 7, "text", "\u2603", "list", new ArrayList<>(List.of(1, "two"))));
        for (var entry : values.entrySet()) {
            same(true, client.set(entry.getKey(), 600, entry.getValue()).get());
        }
        List<String> asked = new ArrayList<>(values.keySet());
        asked.add("none");
        same(values, client.getBulk(asked));
        same(true, client.set("large", 600, large()).get());
        same(true, Arrays.equals(large(), (byte[]) client.get("large")));
        // Many requests that wait in one connection.
        List<Future<Boolean>> stores = new ArrayList<>();
        for (int n = 0; n < 2000; n++) {
            stores.add(client.set("many" + n, 600, n));
        }
        for (var store : stores) {
            same(true, store.get());
        }
        for (int n = 0; n < 2000; n++) {
            same(n, client.get("many" + n));
        }
        same(true, client.set("short", 1, "lived").get());
        untilGone(() -> client.get("short"));
        same(true, client.delete("key").get());
        same(false, client.delete("key").get());
        for (var stats : client.getStats().values()) {
            same("1.6.45", stats.get("version"));
        }
        client.shutdown();
        System.out.println("spymemcached, " + protocol + ": passed");
    }

    static void xmemcached(InetSocketAddress address, boolean binary) throws Exception {
        var builder = new XMemcachedClientBuilder(List.of(address));
        builder.setCommandFactory(binary ? new BinaryCommandFactory() : new TextCommandFactory());
        builder.setOpTimeout(TIMEOUT);
        builder.setConnectionPoolSize(2);
        var client = builder.build();
        client.flushAll();
        // Whoever asks may be told before the answer is kept, and then sees none.
        Object versions = null;
        long end = System.currentTimeMillis() + TIMEOUT;
        while (!"[1.6.45]".equals(versions) && System.currentTimeMillis() < end) {
            versions = client.getVersions().values().toString();
        }
        same("[1.6.45]", versions);
        same(true, client.set("key", 600, "value"));
        same("value", client.get("key"));
        same(false, client.add("key", 600, "other"));
        same(false, client.replace("none", 600, "x"));
        GetsResponse<String> got = client.gets("key");
        same(true, client.cas("key", 600, "swapped", got.getCas()));
        same(false, client.cas("key", 600, "again", got.getCas()));
        same(true, client.append("key", "!"));
        same(true, client.prepend("key", ">"));
        same(">swapped!", client.get("key"));
        same(10L, client.incr("n", 5, 10));
        same(15L, client.incr("n", 5));
        same(0L, client.decr("n", 20));
        same(true, client.touch("key", 60));
        Map<String, Object> values = new HashMap<>(
            Map.of("int", 7, "text", "\u2603", "list", new ArrayList<>(List.of(1, "two"))));
        for (var entry : values.entrySet()) {
            same(true, client.set(entry.getKey(), 600, entry.getValue()));
        }
        List<String> asked = new ArrayList<>(values.keySet());
        asked.add("none");
        same(values, client.get(asked));
        same(true, client.set("large", 600, large()));
        same(true, Arrays.equals(large(), (byte[]) client.get("large")));
        for (int n = 0; n < 2000; n++) {
            client.setWithNoReply("quiet" + n, 600, n);
        }
        // Stores without an answer and reads may go over different connections.
        for (int n = 0; n < 2000; n++) {
            String key = "quiet" + n;
            long last = System.currentTimeMillis() + TIMEOUT;
            for (Object found = client.get(key); !Objects.equals(n, found); found = client.get(key)) {
                same(true, found == null && System.currentTimeMillis() < last);
            }
        }
        same(true, client.set("short", 1, "lived"));
        untilGone(() -> client.get("short"));
        same(true, client.delete("key"));
        same(false, client.delete("key"));
        for (var stats : client.getStats().values()) {
            same("1.6.45", stats.get("version"));
        }
        client.shutdown();
        System.out.println("xmemcached, " + (binary ? "BINARY" : "TEXT") + ": passed");
    }

    public static void main(String[] arguments) throws Exception {
        System.setProperty("net.spy.log.LoggerImpl", "net.spy.memcached.compat.log.SLF4JLogger");
        var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        try {
            for (var protocol : Protocol.values()) {
                spymemcached(address, protocol);
            }
            xmemcached(address, false);
            xmemcached(address, true);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }
}
