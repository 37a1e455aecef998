// spymemcached by SASL PLAIN, the one of its mechanisms that the server has.
// Usage: java -cp spymemcached.jar Sasl.java PORT USER PASSWORD.

import java.util.List;
import net.spy.memcached.AddrUtil;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.ConnectionFactoryBuilder.Protocol;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.auth.AuthDescriptor;
import net.spy.memcached.auth.PlainCallbackHandler;

public class Sasl {
  static MemcachedClient client(String port, String user, String password) throws Exception {
    var login = new AuthDescriptor(new String[] {"PLAIN"}, new PlainCallbackHandler(user, password));
    var factory = new ConnectionFactoryBuilder().setProtocol(Protocol.BINARY);
    factory.setAuthDescriptor(login).setOpTimeout(5000);
    return new MemcachedClient(factory.build(), AddrUtil.getAddresses(List.of("127.0.0.1:" + port)));
  }

  static void check(boolean holds, String what) {
    if (!holds) {
      System.err.println("not so: " + what);
      System.exit(1);
    }
  }

  public static void main(String[] args) throws Exception {
    var right = client(args[0], args[1], args[2]);
    check(right.set("key", 0, "value").get(), "set stores");
    check("value".equals(right.get("key")), "get finds it");
    check(right.delete("key").get(), "delete removes it");
    check(right.get("key") == null, "it is gone");
    right.shutdown();
    var wrong = client(args[0], args[1], args[2] + "x");
    try {
      wrong.set("key", 0, "value").get();
      check(false, "a wrong password is refused");
    } catch (Exception refused) {
      System.out.println("refused: " + refused);
    }
    System.out.println("spymemcached, SASL PLAIN: passed");
    System.exit(0);
  }
}
