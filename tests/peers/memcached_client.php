<?php
// php-memcached, on libmemcached, through what an application does, over text and binary; then
// sessions. Usage: php memcached_client.php PORT.

$port = (int) $argv[1];

function same($wanted, $got): void {
    if ($wanted !== $got) {
        throw new Exception('wanted ' . var_export($wanted, true) . ', got ' . var_export($got, true));
    }
}

function check(int $port, bool $binary): void {
    $client = new Memcached();
    $client->setOption(Memcached::OPT_BINARY_PROTOCOL, $binary);
    $client->setOption(Memcached::OPT_COMPRESSION, false);
    same(true, $client->addServer('127.0.0.1', $port));
    same(['127.0.0.1:' . $port => '1.6.45'], $client->getVersion());
    same(true, $client->flush());
    same(true, $client->set('key', 'value', 600));
    same('value', $client->get('key'));
    same(false, $client->add('key', 'other'));
    // Over binary libmemcached has the code of the packet, a key that exists.
    same($binary ? Memcached::RES_DATA_EXISTS : Memcached::RES_NOTSTORED, $client->getResultCode());
    same(false, $client->replace('none', 'x'));
    same(true, $client->append('key', '!'));
    same(true, $client->prepend('key', '>'));
    $got = $client->get('key', null, Memcached::GET_EXTENDED);
    same('>value!', $got['value']);
    same(true, $client->cas($got['cas'], 'key', 'swapped', 600));
    same(false, $client->cas($got['cas'], 'key', 'again', 600));
    same(Memcached::RES_DATA_EXISTS, $client->getResultCode());
    // Flags carry the type.
    $values = ['int' => 7, 'float' => 1.5, 'true' => true, 'array' => ['a' => [1, null]], 'bytes' => "\0\r\n\xff"];
    same(true, $client->setMulti($values, 600));
    $found = $client->getMulti([...array_keys($values), 'none'], Memcached::GET_PRESERVE_ORDER);
    same($values + ['none' => null], $found);
    same(array_fill_keys(array_keys($values), true), $client->deleteMulti(array_keys($values)));
    same(true, $client->set('n', 10));
    same(15, $client->increment('n', 5));
    same(0, $client->decrement('n', 20));
    same(false, $client->increment('none'));
    if ($binary) {
        same(42, $client->increment('from', 1, 42, 600));
    }
    $large = str_repeat('x', 1000000);
    same(true, $client->set('large', $large));
    same($large, $client->get('large'));
    same(false, $client->set('beyond', str_repeat('x', 1 << 20)));
    same('swapped', $client->get('key'));
    same(true, $client->touch('key', 60));
    same(true, $client->set('short', 'lived', 1));
    for ($end = microtime(true) + 20; $client->get('short') !== false;) {
        same(true, microtime(true) < $end);
    }
    same(Memcached::RES_NOTFOUND, $client->getResultCode());
    same(true, $client->delete('key'));
    same(false, $client->delete('key'));
    $stats = $client->getStats()['127.0.0.1:' . $port];
    same('1.6.45', $stats['version']);
    // Stores that wait for no answer, and a read that shows that all have come.
    if (!$binary) {
        $client->setOption(Memcached::OPT_NOREPLY, true);
        for ($n = 0; $n < 1000; $n++) {
            $client->set("quiet$n", $n);
        }
        $client->setOption(Memcached::OPT_NOREPLY, false);
        same(1000, count($client->getMulti(array_map(fn ($n) => "quiet$n", range(0, 999)))));
    }
    $client->quit();
}

// A session is read, changed and closed under a lock, and gone when it is destroyed.
function sessions(int $port): void {
    ini_set('session.save_handler', 'memcached');
    ini_set('session.save_path', "127.0.0.1:$port");
    ini_set('session.use_cookies', '0');
    ini_set('session.cache_limiter', '');
    ini_set('memcached.sess_prefix', 'session.');
    session_id(bin2hex(random_bytes(16)));
    for ($visit = 1; $visit <= 3; $visit++) {
        same(true, session_start());
        same($visit - 1, $_SESSION['visits'] ?? 0);
        $_SESSION['visits'] = $visit;
        $_SESSION['basket'] = str_repeat('thing ', 10000);
        $client = new Memcached();
        $client->addServer('127.0.0.1', $port);
        same('1', (string) $client->get('session.lock.' . session_id()));
        same(true, session_write_close());
        same(false, $client->get('session.lock.' . session_id()));
        same(true, str_contains($client->get('session.' . session_id()), 'visits'));
        $_SESSION = [];
    }
    same(true, session_start());
    same(true, session_destroy());
    same(false, $client->get('session.' . session_id()));
}

check($port, false);
check($port, true);
ob_start();
sessions($port);
ob_end_clean();
echo "php-memcached: passed\n";
