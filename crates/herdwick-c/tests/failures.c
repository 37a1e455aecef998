/*
 * What calls return when a server ends or is silent, descriptors run out, or the process forks, and what an event
 * loop sees: failures CASE ADDRESS TRANSPORT [AUTHORITIES]. SIGPIPE has its default action, as in most programs.
 * Returns 1 at the first difference.
 */
#include <herdwick.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* A bound for failures in milliseconds, which no passing test waits for. */
enum { HANG = 60000 };

static const char *address, *transport;
static herdwick_options *options;

static void make_options(const char *authorities, uint32_t deadline) {
    CHECK(herdwick_options_new(&options) == HERDWICK_OK);
    CHECK(herdwick_options_deadline(options, deadline) == HERDWICK_OK);
    CHECK(herdwick_options_transport(options, transport) == HERDWICK_OK);
    if (authorities != NULL) {
        CHECK(herdwick_options_tls(options, authorities, NULL, authorities) == HERDWICK_USAGE);
        CHECK(herdwick_options_tls(options, authorities, NULL, NULL) == HERDWICK_OK);
    }
}

static herdwick_client *connect_client(void) {
    herdwick_client *client;
    CHECK(herdwick_connect(address, options, &client) == HERDWICK_OK);
    return client;
}

static herdwick_session *open_session(void) {
    herdwick_session *session;
    CHECK(herdwick_session_open(address, options, &session) == HERDWICK_OK);
    CHECK(strcmp(herdwick_session_transport(session), transport) == 0);
    return session;
}

static herdwick_status submit(herdwick_session *session, int32_t operation, const char *key) {
    herdwick_request request = {.operation = operation, .key = key, .key_length = strlen(key)};
    request.value = "v";
    request.value_length = 1;
    request.tag = operation == HERDWICK_GET ? session : NULL;
    return herdwick_submit(session, &request);
}

/* The answers of a session, by their status. A request whose tag is not NULL is a get. */
struct answers {
    size_t hits, misses, stored, lost_gets, lost_sets;
    herdwick_status get, set;
};

static size_t all(const struct answers *answers) {
    return answers->hits + answers->misses + answers->stored + answers->lost_gets + answers->lost_sets;
}

static void on_answer(void *context, const herdwick_answer *answer) {
    struct answers *answers = context;
    if (answer->tag == NULL) {
        answers->stored += answer->status == HERDWICK_OK;
        answers->lost_sets += answer->status < 0;
        answers->set = answer->status;
        return;
    }
    /* The item tells as much as the answer. */
    CHECK(answer->item.status == answer->status);
    CHECK((answer->item.value != NULL) == (answer->status == HERDWICK_OK));
    answers->hits += answer->status == HERDWICK_OK;
    answers->misses += answer->status == HERDWICK_NOT_FOUND;
    answers->lost_gets += answer->status < 0;
    answers->get = answer->status;
    if (answer->status < 0) {
        CHECK(strlen(herdwick_error_text()) > 0);
    }
}

/* Waits and polls until so many answers are there. */
static void answered(herdwick_session *session, struct answers *answers, size_t wanted) {
    while (all(answers) < wanted) {
        CHECK(herdwick_session_wait(session) == HERDWICK_OK);
        CHECK(herdwick_session_poll(session, on_answer, answers, NULL) == HERDWICK_OK);
    }
}

/* Tells the test that all is ready, and waits until it has done its part. */
static void pause_for_test(void) {
    char line[8];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

/* The server ends while a client and a session are open. */
static void server_ends(void) {
    herdwick_client *client = connect_client();
    herdwick_session *session = open_session();
    struct answers answers = {0};
    size_t accepted = 1;
    int is_fabric = strcmp(transport, "tcp") != 0;
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_OK);
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    answered(session, &answers, 1);
    CHECK(answers.hits == 1);
    /* Its answer is not read: a socket that is closed with bytes unread is reset. */
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    CHECK(herdwick_session_flush(session) == HERDWICK_OK);
    accepted++;
    pause_for_test();
    herdwick_status status = HERDWICK_OK;
    while (status == HERDWICK_OK) {
        status = submit(session, accepted % 2 ? HERDWICK_SET : HERDWICK_GET, "k");
        accepted += status == HERDWICK_OK;
        CHECK(herdwick_session_flush(session) == HERDWICK_OK);
    }
    /* Writes to the socket have failed; over a fabric no more requests fit. */
    CHECK(status == HERDWICK_DISCONNECTED || (is_fabric && status == HERDWICK_FULL));
    while ((status = herdwick_session_poll(session, on_answer, &answers, NULL)) == HERDWICK_OK) {
        CHECK(herdwick_session_wait(session) == HERDWICK_OK);
    }
    CHECK(status == HERDWICK_DISCONNECTED && all(&answers) == accepted && answers.stored == 0);
    CHECK(answers.get == HERDWICK_DISCONNECTED && answers.lost_gets + answers.hits >= 2);
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_DISCONNECTED);
    herdwick_session_free(session);
    /* The sockets of a server that ends are closed one after the other: the client's may still be open, and a
     * set would be sent. A get is repeated, and finds that there is no server. */
    CHECK(herdwick_get(client, S("k"), NULL) == HERDWICK_UNREACHABLE);
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_UNREACHABLE);
    herdwick_client_free(client);
}

/* The server's end of the socket is closed, and nothing was read. The client writes until that fails. */
static void peer_closes(void) {
    herdwick_session *session = open_session();
    pause_for_test();
    size_t accepted = 0;
    struct answers answers = {0};
    herdwick_status status = HERDWICK_OK;
    while ((status = submit(session, HERDWICK_SET, "k")) == HERDWICK_OK) {
        accepted++;
        CHECK(herdwick_session_flush(session) == HERDWICK_OK);
    }
    CHECK(status == HERDWICK_DISCONNECTED);
    CHECK(herdwick_session_poll(session, on_answer, &answers, NULL) == HERDWICK_DISCONNECTED);
    CHECK(answers.lost_sets == accepted);
    herdwick_session_free(session);
}

/* The server accepts connections and never answers. */
static void server_is_silent(void) {
    herdwick_client *client = connect_client();
    herdwick_item item, items[3];
    herdwick_key keys[3] = {{S("a")}, {S("b")}, {S("c")}};
    CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_TIMEOUT);
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_UNKNOWN_OUTCOME);
    memset(items, 0x5a, sizeof items);
    CHECK(herdwick_get_many(client, keys, 3, items) == HERDWICK_TIMEOUT);
    for (int at = 0; at < 3; at++) {
        CHECK(items[at].status == HERDWICK_TIMEOUT && items[at].value == NULL && items[at].length == 0);
    }
    /* Nothing is filled after a mistake. */
    keys[1].length = 0;
    memset(items, 0x5a, sizeof items);
    CHECK(herdwick_get_many(client, keys, 3, items) == HERDWICK_USAGE);
    CHECK(items[0].length != 0);
    herdwick_client_free(client);
    herdwick_session *session = open_session();
    struct answers answers = {0};
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    CHECK(submit(session, HERDWICK_SET, "k") == HERDWICK_OK);
    while (herdwick_session_poll(session, on_answer, &answers, NULL) == HERDWICK_OK) {
        CHECK(herdwick_session_wait(session) == HERDWICK_OK);
    }
    CHECK(answers.lost_gets == 1 && answers.get == HERDWICK_TIMEOUT);
    CHECK(answers.lost_sets == 1 && answers.set == HERDWICK_UNKNOWN_OUTCOME);
    herdwick_session_free(session);
}

/* The process has no descriptor left. */
static void descriptors_run_out(void) {
    herdwick_client *client;
    herdwick_session *session;
    int last = -1, next;
    while ((next = open("/dev/null", O_RDONLY)) >= 0) {
        last = next;
    }
    CHECK(errno == EMFILE && last >= 0);
    CHECK(herdwick_connect(address, options, &client) == HERDWICK_SYSTEM && client == NULL);
    CHECK(herdwick_session_open(address, options, &session) == HERDWICK_SYSTEM && session == NULL);
    CHECK(herdwick_discover("config:127.0.0.1:1", options, &client) == HERDWICK_SYSTEM && client == NULL);
}

/* Waits for the descriptor as an event loop does, and polls, until so many answers are there. */
static void looped(herdwick_session *session, struct answers *answers, size_t wanted, int timeout) {
    struct pollfd fd = {herdwick_session_descriptor(session), POLLIN, 0};
    while (all(answers) < wanted) {
        CHECK(poll(&fd, 1, timeout) >= 0);
        CHECK(herdwick_session_poll(session, on_answer, answers, NULL) == HERDWICK_OK);
        timeout = herdwick_session_arm(session);
    }
    CHECK(timeout == -1);
}

/* Requests that are submitted during a wait, with and without others in flight. */
static void requests_during_a_wait(void) {
    herdwick_session *session = open_session();
    struct pollfd fd = {herdwick_session_descriptor(session), POLLIN, 0};
    struct answers answers = {0};
    CHECK(herdwick_session_arm(session) == -1);
    CHECK(poll(&fd, 1, 0) == 0);
    for (size_t wanted = 1; wanted <= 100; wanted += 2) {
        /* Nothing is in flight, and the descriptor is armed. */
        CHECK(submit(session, HERDWICK_GET, "none") == HERDWICK_OK);
        CHECK(herdwick_session_flush(session) == HERDWICK_OK);
        CHECK(poll(&fd, 1, HANG) == 1);
        CHECK(herdwick_session_poll(session, on_answer, &answers, NULL) == HERDWICK_OK);
        int timeout = herdwick_session_arm(session);
        /* One is, or has just been answered, and this one is not flushed. */
        CHECK(submit(session, HERDWICK_GET, "none") == HERDWICK_OK);
        CHECK(poll(&fd, 1, HANG) == 1);
        looped(session, &answers, wanted + 1, timeout == 0 ? 0 : HANG);
        CHECK(poll(&fd, 1, 0) == 0);
    }
    CHECK(answers.misses == 100);
    herdwick_session_free(session);
}

/* A child uses and frees its parent's handles, which the parent goes on to use. */
static void process_forks(int is_text) {
    herdwick_client *client = connect_client();
    herdwick_session *session = open_session();
    herdwick_item item;
    struct answers answers = {0};
    struct pollfd fd = {herdwick_session_descriptor(session), POLLIN, 0};
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_OK);
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    if (is_text) {
        /* The answer is there, and the wait for it has not ended. */
        CHECK(herdwick_session_flush(session) == HERDWICK_OK);
        CHECK(herdwick_session_arm(session) > 0);
        CHECK(poll(&fd, 1, HANG) == 1);
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(herdwick_session_poll(session, on_answer, &answers, NULL) == HERDWICK_DISCONNECTED);
        CHECK(all(&answers) == 1 && answers.get == HERDWICK_DISCONNECTED);
        CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_DISCONNECTED);
        CHECK(herdwick_session_arm(session) <= 0);
        herdwick_session_free(session);
        CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_OK && item.length == 1);
        herdwick_client_free(client);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(!is_text || poll(&fd, 1, 0) == 1);
    answered(session, &answers, 1);
    CHECK(answers.hits == 1);
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    answered(session, &answers, 2);
    CHECK(answers.hits == 2);
    CHECK(herdwick_get(client, S("k"), &item) == HERDWICK_OK && item.length == 1);
    herdwick_session_free(session);
    herdwick_client_free(client);
}

/* A deadline of 0 is none. */
static void deadline_is_none(void) {
    herdwick_client *client = connect_client();
    herdwick_session *session = open_session();
    struct answers answers = {0};
    CHECK(herdwick_set_deadline(client, 0) == HERDWICK_OK);
    CHECK(herdwick_set(client, S("k"), S("v"), 0, 0) == HERDWICK_OK);
    CHECK(submit(session, HERDWICK_GET, "k") == HERDWICK_OK);
    CHECK(herdwick_session_arm(session) >= 0);
    answered(session, &answers, 1);
    CHECK(answers.hits == 1);
    herdwick_session_free(session);
    herdwick_client_free(client);
}

int main(int count, char **arguments) {
    CHECK(count == 4 || count == 5);
    const char *name = arguments[1], *authorities = arguments[4];
    address = arguments[2];
    transport = arguments[3];
    signal(SIGPIPE, SIG_DFL);
    uint32_t deadline = strcmp(name, "silent") == 0 ? 50 : strcmp(name, "none") == 0 ? 0 : 30000;
    make_options(authorities, deadline);
    if (strcmp(name, "ends") == 0) {
        server_ends();
    } else if (strcmp(name, "closes") == 0) {
        peer_closes();
    } else if (strcmp(name, "silent") == 0) {
        server_is_silent();
    } else if (strcmp(name, "descriptors") == 0) {
        descriptors_run_out();
    } else if (strcmp(name, "waits") == 0) {
        requests_during_a_wait();
    } else if (strcmp(name, "forks") == 0) {
        process_forks(strcmp(transport, "tcp") == 0);
    } else {
        CHECK(strcmp(name, "none") == 0);
        deadline_is_none();
    }
    herdwick_options_free(options);
    return 0;
}
