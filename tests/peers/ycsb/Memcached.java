// YCSB's store for a memcached: a record is one item, its fields in it by name and length. Each thread
// of YCSB has a connection. The property `memcached.hosts` names the server.

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.MemcachedClient;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

public class Memcached extends DB {
    private MemcachedClient client;

    @Override
    public void init() throws DBException {
        var factory = new ConnectionFactoryBuilder().setOpTimeout(20_000).setDaemon(true).build();
        try {
            client = new MemcachedClient(factory, AddrUtil.getAddresses(getProperties().getProperty("memcached.hosts")));
        } catch (IOException error) {
            throw new DBException(error);
        }
    }

    @Override
    public void cleanup() {
        client.shutdown();
    }

    @Override
    public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        byte[] record = (byte[]) client.get(key);
        if (record == null) {
            return Status.NOT_FOUND;
        }
        try (var in = new DataInputStream(new ByteArrayInputStream(record))) {
            while (in.available() > 0) {
                String name = in.readUTF();
                byte[] value = in.readNBytes(in.readInt());
                if (fields == null || fields.contains(name)) {
                    result.put(name, new ByteArrayByteIterator(value));
                }
            }
        } catch (IOException error) {
            return Status.ERROR;
        }
        return Status.OK;
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        var bytes = new ByteArrayOutputStream();
        try (var out = new DataOutputStream(bytes)) {
            for (var field : values.entrySet()) {
                byte[] value = field.getValue().toArray();
                out.writeUTF(field.getKey());
                out.writeInt(value.length);
                out.write(value);
            }
            return client.set(key, 0, bytes.toByteArray()).get() ? Status.OK : Status.ERROR;
        } catch (Exception error) {
            return Status.ERROR;
        }
    }

    // With `writeallfields`, an update has the whole record.
    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        return insert(table, key, values);
    }

    @Override
    public Status delete(String table, String key) {
        try {
            return client.delete(key).get() ? Status.OK : Status.NOT_FOUND;
        } catch (Exception error) {
            return Status.ERROR;
        }
    }

    @Override
    public Status scan(String table, String key, int count, Set<String> fields, Vector<HashMap<String, ByteIterator>> result) {
        return Status.NOT_IMPLEMENTED;
    }
}
