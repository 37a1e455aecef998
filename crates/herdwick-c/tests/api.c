/*
 * Calls every function of the library: api ADDRESS TRANSPORT ADDRESS ADDRESS. The first server is reached
 * by the transport that is named, and all three make a cluster. Every answer is compared with what
 * memcached's protocol demands. Prints the transport, and returns 1 at the first difference.
 */
#include <herdwick.h>

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                      \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #condition,   \
                    herdwick_error_text());                                                   \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

/* A key or a value with its length. */
#define S(text) (text), strlen(text)

static int is(const herdwick_item *item, const char *value) {
    return item->status == HERDWICK_OK && item->length == strlen(value) &&
           memcmp(item->value, value, item->length) == 0;
}

static void options(const char *transport, herdwick_options **made) {
    herdwick_options *options;
    CHECK(herdwick_options_new(&options) == HERDWICK_OK);
    CHECK(herdwick_options_deadline(options, 20000) == HERDWICK_OK);
    CHECK(herdwick_options_transport(options, "pigeon") == HERDWICK_USAGE);
    CHECK(strstr(herdwick_error_text(), "pigeon") != NULL);
    CHECK(herdwick_options_transport(options, transport) == HERDWICK_OK);
    CHECK(herdwick_options_window(options, 0) == HERDWICK_USAGE);
    CHECK(herdwick_options_window(options, 64) == HERDWICK_OK);
    CHECK(herdwick_options_value_max(options, 4u << 20) == HERDWICK_OK);
    CHECK(herdwick_options_login(options, "a:b", "c") == HERDWICK_USAGE);
    CHECK(herdwick_options_login(options, "user", "password") == HERDWICK_OK);
    CHECK(herdwick_options_distribution(options, "modulo") == HERDWICK_USAGE);
    CHECK(herdwick_options_distribution(options, "ketama") == HERDWICK_OK);
    CHECK(herdwick_options_on_failure(options, "panic", 0, 0) == HERDWICK_USAGE);
    CHECK(herdwick_options_on_failure(options, "eject", 2, 1000) == HERDWICK_OK);
    CHECK(herdwick_options_tls(options, "/no/such/file", NULL, NULL) == HERDWICK_USAGE);
    CHECK(herdwick_options_tls(options, NULL, NULL, "/no/such/file") == HERDWICK_USAGE);
    CHECK(strstr(herdwick_error_text(), "certificate") != NULL);
    *made = options;
}

static void single_keys(herdwick_client *client) {
    herdwick_item item;
    uint64_t number = 0;
    CHECK(herdwick_get(client, S("none"), &item) == HERDWICK_NOT_FOUND && item.value == NULL);
    CHECK(herdwick_set(client, S("k"), S("one"), 7, 0) == HERDWICK_OK);
    CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_OK && is(&item, "one"));
    CHECK(item.flags == 7);
    uint64_t version = item.version;
    CHECK(herdwick_get(client, S("k"), NULL) == HERDWICK_OK);
    CHECK(herdwick_add(client, S("k"), S("two"), 0, 0) == HERDWICK_NOT_STORED);
    CHECK(herdwick_add(client, S("new"), S("two"), 0, 60) == HERDWICK_OK);
    CHECK(herdwick_replace(client, S("none"), S("x"), 0, 0) == HERDWICK_NOT_STORED);
    CHECK(herdwick_replace(client, S("new"), S("three"), 0, 0) == HERDWICK_OK);
    CHECK(herdwick_cas(client, S("k"), S("four"), 0, 0, version + 1000) == HERDWICK_CHANGED);
    CHECK(herdwick_cas(client, S("k"), S("four"), 0, 0, version) == HERDWICK_OK);
    CHECK(herdwick_cas(client, S("k"), S("five"), 0, 0, version) == HERDWICK_CHANGED);
    CHECK(herdwick_cas(client, S("none"), S("five"), 0, 0, version) == HERDWICK_NOT_FOUND);
    CHECK(herdwick_append(client, S("k"), S("!")) == HERDWICK_OK);
    CHECK(herdwick_prepend(client, S("k"), S(">")) == HERDWICK_OK);
    CHECK(herdwick_append(client, S("none"), S("!")) == HERDWICK_NOT_STORED);
    CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_OK && is(&item, ">four!"));
    CHECK(herdwick_incr(client, S("k"), 1, &number) == HERDWICK_NOT_NUMERIC);
    CHECK(herdwick_incr(client, S("none"), 1, &number) == HERDWICK_NOT_FOUND);
    CHECK(herdwick_set(client, S("n"), S("41"), 0, 0) == HERDWICK_OK);
    CHECK(herdwick_incr(client, S("n"), 1, &number) == HERDWICK_OK && number == 42);
    CHECK(herdwick_decr(client, S("n"), 100, &number) == HERDWICK_OK && number == 0);
    CHECK(herdwick_decr(client, S("n"), 1, NULL) == HERDWICK_OK);
    CHECK(herdwick_touch(client, S("n"), 3600) == HERDWICK_OK);
    CHECK(herdwick_touch(client, S("none"), 3600) == HERDWICK_NOT_FOUND);
    CHECK(herdwick_delete(client, S("n")) == HERDWICK_OK);
    CHECK(herdwick_delete(client, S("n")) == HERDWICK_NOT_FOUND);
}

static void sizes(herdwick_client *client) {
    herdwick_item item;
    size_t most = 1 << 19;
    char *large = calloc(2, 1048576);
    CHECK(large != NULL);
    for (size_t at = 0; at < most; at++) {
        large[at] = (char)(at * 31 + at / 257);
    }
    for (size_t length = 0; length <= most; length = length * 4 + 1) {
        CHECK(herdwick_set(client, S("size"), length > 0 ? large : NULL, length, 0, 0) == HERDWICK_OK);
        CHECK(herdwick_get(client, S("size"), &item) == HERDWICK_OK && item.length == length);
        CHECK(length == 0 || memcmp(item.value, large, length) == 0);
        /* What it points to is there, for an empty value too. */
        CHECK(item.value != NULL);
    }
    CHECK(herdwick_set(client, S("size"), large, 2 * 1048576, 0, 0) == HERDWICK_TOO_LARGE);
    free(large);
    /* Any bytes but spaces and control characters are a key. */
    char key[250];
    memset(key, '\xff', sizeof key);
    CHECK(herdwick_set(client, key, sizeof key, "\0\r\n", 3, 0, 0) == HERDWICK_OK);
    CHECK(herdwick_get(client, key, sizeof key, &item) == HERDWICK_OK && item.length == 3);
    CHECK(memcmp(item.value, "\0\r\n", 3) == 0);
}

/* A pointer that was not initialised. */
#define WILD ((void *)8)

static void mistakes(herdwick_client *client) {
    herdwick_item item;
    herdwick_client *none = WILD;
    CHECK(herdwick_get(NULL, S("k"), &item) == HERDWICK_USAGE);
    CHECK(herdwick_get(client, NULL, 3, &item) == HERDWICK_USAGE);
    CHECK(herdwick_get(client, "k", 0, &item) == HERDWICK_USAGE);
    CHECK(herdwick_get(client, S("a b"), &item) == HERDWICK_USAGE);
    CHECK(strlen(herdwick_error_text()) > 0);
    CHECK(herdwick_get_many(client, NULL, 3, &item) == HERDWICK_USAGE);
    CHECK(herdwick_get_many(client, NULL, 0, NULL) == HERDWICK_OK);
    /* What is not made is NULL, and may be freed. */
    CHECK(herdwick_connect("http://x", NULL, &none) == HERDWICK_USAGE && none == NULL);
    none = WILD;
    CHECK(herdwick_connect(NULL, NULL, &none) == HERDWICK_USAGE && none == NULL);
    none = WILD;
    CHECK(herdwick_connect("/no/such/socket", NULL, &none) == HERDWICK_UNREACHABLE && none == NULL);
    none = WILD;
    CHECK(herdwick_connect_cluster(NULL, 0, NULL, &none) == HERDWICK_USAGE && none == NULL);
    none = WILD;
    CHECK(herdwick_discover("etc:x", NULL, &none) == HERDWICK_USAGE && none == NULL);
    none = WILD;
    CHECK(herdwick_discover("dns:nowhere.invalid:1", NULL, &none) == HERDWICK_UNREACHABLE);
    CHECK(none == NULL);
    CHECK(herdwick_connect("127.0.0.1", NULL, NULL) == HERDWICK_USAGE);
    CHECK(herdwick_options_new(NULL) == HERDWICK_USAGE);
    herdwick_session *session = WILD;
    CHECK(herdwick_session_open("/no/such/socket", NULL, &session) == HERDWICK_UNREACHABLE);
    CHECK(session == NULL);
    herdwick_client_free(NULL);
    herdwick_session_free(NULL);
    herdwick_options_free(NULL);
    CHECK(strcmp(herdwick_status_text(HERDWICK_OK), "done") == 0);
    CHECK(strlen(herdwick_status_text(99)) > 0);
    CHECK(strlen(herdwick_version()) > 0);
}

struct stats {
    herdwick_client *client;
    int count;
};

static void on_stat(void *context, const char *name, const char *value) {
    struct stats *stats = context;
    stats->count += strlen(name) > 0 && value != NULL;
    /* Within a callback the client is in use. */
    CHECK(herdwick_get(stats->client, S("k"), NULL) == HERDWICK_USAGE);
}

static void server(herdwick_client *client, const char *address, const char *transport) {
    const char *text;
    size_t count;
    CHECK(herdwick_server_count(client, &count) == HERDWICK_OK && count == 1);
    CHECK(herdwick_server_name(client, 0, &text) == HERDWICK_OK && strcmp(text, address) == 0);
    CHECK(herdwick_server_name(client, 1, &text) == HERDWICK_USAGE);
    CHECK(herdwick_server_of(client, S("k"), &text) == HERDWICK_OK && strcmp(text, address) == 0);
    CHECK(herdwick_server_version(client, 0, &text) == HERDWICK_OK && strlen(text) > 0);
    CHECK(herdwick_server_transport(client, 0, &text) == HERDWICK_OK);
    CHECK(strcmp(text, transport) == 0);
    printf("%s\n", text);
    CHECK(herdwick_server_fallback(client, 0, &text) == HERDWICK_OK);
    CHECK((strlen(text) > 0) == (strcmp(transport, "tcp") == 0));
    struct stats stats = {client, 0};
    CHECK(herdwick_server_stats(client, 0, "", on_stat, &stats) == HERDWICK_OK);
    CHECK(stats.count > 20);
    CHECK(herdwick_server_stats(client, 0, "", NULL, NULL) == HERDWICK_USAGE);
}

enum { KEYS = 500 };

static char names[KEYS][24];

static void many(herdwick_client *client) {
    herdwick_key keys[KEYS];
    herdwick_item items[KEYS];
    for (int at = 0; at < KEYS; at++) {
        snprintf(names[at], sizeof names[at], "many-%d", at);
        keys[at] = (herdwick_key){names[at], strlen(names[at])};
        if (at % 3 != 0) {
            CHECK(herdwick_set(client, S(names[at]), S(names[at]), (uint32_t)at, 0) == HERDWICK_OK);
        }
    }
    CHECK(herdwick_get_many(client, keys, KEYS, items) == HERDWICK_OK);
    for (int at = 0; at < KEYS; at++) {
        if (at % 3 == 0) {
            CHECK(items[at].status == HERDWICK_NOT_FOUND && items[at].value == NULL);
        } else {
            CHECK(is(&items[at], names[at]) && items[at].flags == (uint32_t)at);
        }
    }
}

/* What a session's answers are compared with. */
struct expected {
    herdwick_session *session;
    size_t answers;
    uint64_t sum;
    int hits;
};

static void on_answer(void *context, const herdwick_answer *answer) {
    struct expected *expected = context;
    expected->answers++;
    CHECK(answer->status == HERDWICK_OK || answer->status == HERDWICK_NOT_FOUND);
    if (answer->tag != NULL) {
        /* A get, whose tag is the key, and the value. */
        expected->hits += is(&answer->item, answer->tag);
    } else {
        expected->sum += answer->number;
    }
    CHECK(herdwick_session_flush(expected->session) == HERDWICK_USAGE);
}

/* Polls until all `wanted` answers are there: by the descriptor, or by sleeping. */
static void drain(herdwick_session *session, struct expected *expected, size_t wanted, int by_fd) {
    while (expected->answers < wanted) {
        size_t before = expected->answers, count = 0;
        if (by_fd) {
            struct pollfd fd = {herdwick_session_descriptor(session), POLLIN, 0};
            CHECK(fd.fd >= 0);
            int timeout = herdwick_session_arm(session);
            CHECK(timeout >= 0);
            CHECK(poll(&fd, 1, timeout) >= 0);
        } else {
            CHECK(herdwick_session_wait(session) == HERDWICK_OK);
        }
        CHECK(herdwick_session_poll(session, on_answer, expected, &count) == HERDWICK_OK);
        CHECK(count == expected->answers - before);
    }
}

static void pipelined(const char *address, const herdwick_options *options, const char *transport) {
    herdwick_session *session;
    struct expected expected = {NULL, 0, 0, 0};
    CHECK(herdwick_session_open(address, options, &session) == HERDWICK_OK);
    expected.session = session;
    CHECK(strcmp(herdwick_session_transport(session), transport) == 0);
    CHECK(herdwick_session_arm(session) == -1);
    CHECK(herdwick_session_poll(session, NULL, NULL, NULL) == HERDWICK_USAGE);
    herdwick_request set = {.operation = HERDWICK_SET, .key = "sum", .key_length = 3, .value = "0", .value_length = 1};
    CHECK(herdwick_submit(session, &set) == HERDWICK_OK);
    set.operation = 99;
    CHECK(herdwick_submit(session, &set) == HERDWICK_USAGE);
    CHECK(herdwick_submit(session, NULL) == HERDWICK_USAGE);
    drain(session, &expected, 1, 1);
    size_t submitted = 1;
    /* What an operation does not use is not looked at. */
    static const int32_t no_value[] = {HERDWICK_GET, HERDWICK_DELETE, HERDWICK_TOUCH, HERDWICK_INCR, HERDWICK_DECR};
    for (size_t at = 0; at < sizeof no_value / sizeof no_value[0]; at++) {
        herdwick_request request = {.operation = no_value[at], .key = "gone", .key_length = 4};
        request.value_length = SIZE_MAX;
        CHECK(herdwick_submit(session, &request) == HERDWICK_OK);
        drain(session, &expected, ++submitted, 1);
    }
    set.operation = HERDWICK_SET;
    set.value = NULL;
    CHECK(herdwick_submit(session, &set) == HERDWICK_USAGE);
    set.value = "0";
    int full = 0;
    for (int at = 0; at < 20000; at++) {
        herdwick_request get = {.operation = HERDWICK_GET, .key = names[at % KEYS], .tag = names[at % KEYS]};
        get.key_length = strlen(get.key);
        herdwick_request incr = {.operation = HERDWICK_INCR, .key = "sum", .key_length = 3, .number = 1};
        herdwick_request *request = at % 100 == 0 ? &incr : &get;
        herdwick_status status;
        while ((status = herdwick_submit(session, request)) == HERDWICK_FULL) {
            full++;
            CHECK(herdwick_session_flush(session) == HERDWICK_OK);
            drain(session, &expected, expected.answers + 1, full % 2);
        }
        CHECK(status == HERDWICK_OK);
        submitted++;
    }
    CHECK(herdwick_session_flush(session) == HERDWICK_OK);
    drain(session, &expected, submitted, 1);
    CHECK(full > 0 && expected.answers == submitted);
    /* 1 + 2 + ... + 200: each increment was made once, in order. */
    CHECK(expected.sum == 200 * 201 / 2);
    int hits = 0;
    for (int at = 0; at < 20000; at++) {
        hits += at % 100 != 0 && at % KEYS % 3 != 0;
    }
    CHECK(expected.hits == hits);
    herdwick_session_free(session);
    /* One with requests in flight. */
    CHECK(herdwick_session_open(address, options, &session) == HERDWICK_OK);
    set.operation = HERDWICK_SET;
    CHECK(herdwick_submit(session, &set) == HERDWICK_OK);
    CHECK(herdwick_session_flush(session) == HERDWICK_OK);
    herdwick_session_free(session);
}

enum { THREADS = 8, CONNECTS = 500 };

/* Makes clients with options that other threads use, too. */
static void *connects(void *options) {
    const char *servers[] = {"/no/such/socket"};
    for (int at = 0; at < CONNECTS; at++) {
        herdwick_client *client;
        CHECK(herdwick_connect_cluster(servers, 1, options, &client) == HERDWICK_OK);
        herdwick_client_free(client);
    }
    return NULL;
}

static void shared_options(herdwick_options *options) {
    pthread_t threads[THREADS];
    for (int at = 0; at < THREADS; at++) {
        CHECK(pthread_create(&threads[at], NULL, connects, options) == 0);
    }
    for (int at = 0; at < THREADS; at++) {
        CHECK(pthread_join(threads[at], NULL) == 0);
    }
}

static void *on_thread(void *client) {
    herdwick_item item;
    CHECK(strlen(herdwick_error_text()) == 0);
    CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_OK && is(&item, ">four!"));
    return NULL;
}

static void cluster(char **addresses, const herdwick_options *options) {
    const char *servers[] = {addresses[1], addresses[3], addresses[4]};
    const char *name;
    herdwick_client *client;
    size_t count;
    CHECK(herdwick_connect_cluster(servers, 3, options, &client) == HERDWICK_OK);
    CHECK(herdwick_server_count(client, &count) == HERDWICK_OK && count == 3);
    CHECK(herdwick_server_transport(client, 0, &name) == HERDWICK_OK && strcmp(name, "none") == 0);
    CHECK(herdwick_flush_all(client) == HERDWICK_OK);
    many(client);
    single_keys(client);
    size_t keys_of[3] = {0, 0, 0};
    for (int at = 0; at < KEYS; at++) {
        CHECK(herdwick_server_of(client, S(names[at]), &name) == HERDWICK_OK);
        for (int server = 0; server < 3; server++) {
            keys_of[server] += strcmp(name, servers[server]) == 0;
        }
    }
    CHECK(keys_of[0] > 50 && keys_of[1] > 50 && keys_of[2] > 50);
    CHECK(keys_of[0] + keys_of[1] + keys_of[2] == KEYS);
    herdwick_client_free(client);
    /* One server of two is away. */
    const char *half[] = {addresses[1], "/no/such/socket"};
    CHECK(herdwick_connect_cluster(half, 2, NULL, &client) == HERDWICK_OK);
    herdwick_key keys[KEYS];
    herdwick_item items[KEYS];
    for (int at = 0; at < KEYS; at++) {
        keys[at] = (herdwick_key){names[at], strlen(names[at])};
    }
    CHECK(herdwick_get_many(client, keys, KEYS, items) == HERDWICK_UNREACHABLE);
    for (int at = 0; at < KEYS; at++) {
        CHECK(herdwick_server_of(client, S(names[at]), &name) == HERDWICK_OK);
        int is_away = strcmp(name, half[1]) == 0;
        CHECK((items[at].status == HERDWICK_UNREACHABLE) == is_away);
    }
    CHECK(herdwick_flush_all(client) == HERDWICK_UNREACHABLE);
    herdwick_client_free(client);
    char source[300];
    snprintf(source, sizeof source, "dns:%s", addresses[1]);
    CHECK(herdwick_discover(source, options, &client) == HERDWICK_OK);
    CHECK(herdwick_server_count(client, &count) == HERDWICK_OK && count == 1);
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_OK);
    herdwick_client_free(client);
}

int main(int count, char **arguments) {
    CHECK(count == 5);
    const char *address = arguments[1], *transport = arguments[2];
    herdwick_options *made;
    herdwick_client *client;
    options(transport, &made);
    CHECK(herdwick_connect(address, made, &client) == HERDWICK_OK);
    CHECK(herdwick_set_deadline(client, 30000) == HERDWICK_OK);
    CHECK(herdwick_flush_all(client) == HERDWICK_OK);
    single_keys(client);
    sizes(client);
    many(client);
    server(client, address, transport);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_thread, client) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    pipelined(address, made, transport);
    mistakes(client);
    herdwick_client_free(client);
    cluster(arguments, made);
    shared_options(made);
    herdwick_options_free(made);
    return 0;
}
