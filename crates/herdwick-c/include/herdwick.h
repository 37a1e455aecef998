/*
 * The Herdwick client for C: an in-memory cache over shared memory, RDMA or memcached's protocol.
 * The manual page is herdwick(3).
 *
 * Threads: one thread at a time may use a handle, and it may be another one each time. A call on a handle
 * that is in use, by another thread or by the call whose callback this is, ends with HERDWICK_USAGE; it
 * does not wait. Options alone may be used by several threads that connect at once. To free a handle while a
 * call uses it is undefined. Handles share nothing: a thread or a pool has one each. The library's own threads
 * block all signals.
 *
 * A function that makes a handle sets it to NULL where it fails. A callback must return: it must not leave by
 * longjmp, by an exception or by ending its thread.
 *
 * Texts end with a NUL byte and are UTF-8. Keys and values are bytes with their length. A key has 1 to 250
 * bytes, none a space or control character. Times to live are in seconds, and 0 is for ever: there is no
 * limit of 30 days.
 */
#ifndef HERDWICK_H
#define HERDWICK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a call has ended: answers from 0 on, errors below 0. */
typedef enum herdwick_status {
    HERDWICK_OK = 0,
    /* There is no item. */
    HERDWICK_NOT_FOUND = 1,
    /* The condition of add, replace, append or prepend does not hold. */
    HERDWICK_NOT_STORED = 2,
    /* The item has changed since its version was read. */
    HERDWICK_CHANGED = 3,
    /* A session has as many requests in flight as it accepts: poll it. */
    HERDWICK_FULL = 4,
    /* A mistake of the caller; nothing was sent. */
    HERDWICK_USAGE = -1,
    /* The item is larger than the server stores. A set that fails so has removed the old value. */
    HERDWICK_TOO_LARGE = -2,
    /* The value is not a decimal number. */
    HERDWICK_NOT_NUMERIC = -3,
    /* The server refuses for another reason. */
    HERDWICK_SERVER = -4,
    /* There is no connection, or the next dial is not due yet. Nothing was changed. */
    HERDWICK_UNREACHABLE = -5,
    /* No answer before the deadline. Nothing was changed. */
    HERDWICK_TIMEOUT = -6,
    /* The connection was lost. Nothing was changed. */
    HERDWICK_DISCONNECTED = -7,
    /* A change was sent and not answered: it may have been made, or may still be. */
    HERDWICK_UNKNOWN_OUTCOME = -8,
    /* The process or the system lacks memory or descriptors. Nothing was changed. */
    HERDWICK_SYSTEM = -9,
    /* A defect of the library: free the handle. */
    HERDWICK_INTERNAL = -10
} herdwick_status;

/* The text of this thread's last call that failed, until its next one that fails; else empty. */
const char *herdwick_error_text(void);
/* What a status stands for. */
const char *herdwick_status_text(int32_t status);
/* The version of the library. */
const char *herdwick_version(void);

/* ---- Options ------------------------------------------------------------------------------------- */

/* Options of clients and sessions; NULL instead of a handle stands for the defaults. */
typedef struct herdwick_options herdwick_options;

herdwick_status herdwick_options_new(herdwick_options **options);
/* Clients and sessions keep what they were made with. NULL is allowed. */
void herdwick_options_free(herdwick_options *options);
/* How long a call may take, dialling included: 1000 at first; 0 is for ever. */
herdwick_status herdwick_options_deadline(herdwick_options *options, uint32_t milliseconds);
/* auto (at first): the best that both ends have; tcp, shm, verbs or roce: this fabric, or else tcp. */
herdwick_status herdwick_options_transport(herdwick_options *options, const char *name);
/* Requests in flight at each worker over a fabric, 1 to 256: 32 at first. The server may grant fewer. */
herdwick_status herdwick_options_window(herdwick_options *options, uint32_t requests);
/* Largest value that is accepted from a server: 128 MiB at first. */
herdwick_status herdwick_options_value_max(herdwick_options *options, size_t bytes);
/* For a server that requires a password. */
herdwick_status herdwick_options_login(herdwick_options *options, const char *user, const char *password);
/* TLS, with PEM files: the authorities (NULL: the system's), and the client's certificate, or NULL, and its
 * key (NULL: in the certificate's file). A key without a certificate is HERDWICK_USAGE. No fabric that leaves
 * the host is used with it. */
herdwick_status herdwick_options_tls(herdwick_options *options, const char *authorities,
                                     const char *certificate, const char *key);
/* Of several servers: ketama (at first), ketama-one-at-a-time or rendezvous. */
herdwick_status herdwick_options_distribution(herdwick_options *options, const char *name);
/* What a call does whose server fails, of several: fail (at first), retry, failover; or eject, after so
 * many failures, for so long. The numbers count for eject alone. */
herdwick_status herdwick_options_on_failure(herdwick_options *options, const char *policy,
                                            uint32_t failures, uint32_t away_milliseconds);

/* ---- Clients: calls that wait for their answer ----------------------------------------------------- */

/* A client of one server or several. It connects again as needed. */
typedef struct herdwick_client herdwick_client;

/* A key. */
typedef struct herdwick_key {
    const void *data;
    size_t length;
} herdwick_key;

/* An item. Its value belongs to the client, and is valid until the client's next call; or in a callback,
 * until that returns. */
typedef struct herdwick_item {
    const void *value;
    size_t length;
    /* Changes with every change of the item; for herdwick_cas. */
    uint64_t version;
    /* The client's flags. */
    uint32_t flags;
    /* HERDWICK_OK, HERDWICK_NOT_FOUND, or why its server has not answered. */
    herdwick_status status;
} herdwick_item;

/* Connects to HOST:PORT, HOST, [IPV6]:PORT or the path of a unix socket. */
herdwick_status herdwick_connect(const char *address, const herdwick_options *options,
                                 herdwick_client **client);
/* Several servers, each an address, HOST:PORT:WEIGHT or HOST:PORT:WEIGHT NAME. Each is dialled by the first
 * call that needs it. */
herdwick_status herdwick_connect_cluster(const char *const *servers, size_t count,
                                         const herdwick_options *options, herdwick_client **client);
/* Several servers, listed by dns:HOST:PORT or config:HOST:PORT (config get cluster), and listed again as
 * they change. */
herdwick_status herdwick_discover(const char *source, const herdwick_options *options,
                                  herdwick_client **client);
/* NULL is allowed. */
void herdwick_client_free(herdwick_client *client);
/* How long each later call may take; 0 is for ever. */
herdwick_status herdwick_set_deadline(herdwick_client *client, uint32_t milliseconds);

/* HERDWICK_OK or HERDWICK_NOT_FOUND. */
herdwick_status herdwick_get(herdwick_client *client, const void *key, size_t key_length,
                             herdwick_item *item);
/* Reads many keys at once into as many items. HERDWICK_OK if every server has answered; else the first error
 * of a server. All items are filled with what is known: the status of one whose server has not answered is
 * that error. They are untouched only after HERDWICK_USAGE and HERDWICK_INTERNAL. */
herdwick_status herdwick_get_many(herdwick_client *client, const herdwick_key *keys, size_t count,
                                  herdwick_item *items);
herdwick_status herdwick_set(herdwick_client *client, const void *key, size_t key_length,
                             const void *value, size_t value_length, uint32_t flags, uint32_t ttl);
/* HERDWICK_OK or HERDWICK_NOT_STORED. */
herdwick_status herdwick_add(herdwick_client *client, const void *key, size_t key_length,
                             const void *value, size_t value_length, uint32_t flags, uint32_t ttl);
/* HERDWICK_OK or HERDWICK_NOT_STORED. */
herdwick_status herdwick_replace(herdwick_client *client, const void *key, size_t key_length,
                                 const void *value, size_t value_length, uint32_t flags, uint32_t ttl);
/* Stores a value if the item has still this version: HERDWICK_OK, HERDWICK_CHANGED or
 * HERDWICK_NOT_FOUND. */
herdwick_status herdwick_cas(herdwick_client *client, const void *key, size_t key_length,
                             const void *value, size_t value_length, uint32_t flags, uint32_t ttl,
                             uint64_t version);
/* HERDWICK_OK or HERDWICK_NOT_STORED. */
herdwick_status herdwick_append(herdwick_client *client, const void *key, size_t key_length,
                                const void *value, size_t value_length);
/* HERDWICK_OK or HERDWICK_NOT_STORED. */
herdwick_status herdwick_prepend(herdwick_client *client, const void *key, size_t key_length,
                                 const void *value, size_t value_length);
/* HERDWICK_OK or HERDWICK_NOT_FOUND. */
herdwick_status herdwick_delete(herdwick_client *client, const void *key, size_t key_length);
/* HERDWICK_OK or HERDWICK_NOT_FOUND. */
herdwick_status herdwick_touch(herdwick_client *client, const void *key, size_t key_length,
                               uint32_t ttl);
/* Adds to a decimal value, wrapping at 2^64. The new number is stored at `number` unless that is NULL.
 * HERDWICK_OK or HERDWICK_NOT_FOUND. */
herdwick_status herdwick_incr(herdwick_client *client, const void *key, size_t key_length,
                              uint64_t delta, uint64_t *number);
/* Subtracts, down to 0. */
herdwick_status herdwick_decr(herdwick_client *client, const void *key, size_t key_length,
                              uint64_t delta, uint64_t *number);
/* Removes all items of every server. */
herdwick_status herdwick_flush_all(herdwick_client *client);

/* ---- The servers of a client, counted from 0 ------------------------------------------------------- */

/* Texts belong to the client, and are valid until its next call of this section. */
herdwick_status herdwick_server_count(herdwick_client *client, size_t *count);
herdwick_status herdwick_server_name(herdwick_client *client, size_t index, const char **name);
/* Which server has a key. */
herdwick_status herdwick_server_of(herdwick_client *client, const void *key, size_t key_length,
                                   const char **name);
herdwick_status herdwick_server_version(herdwick_client *client, size_t index, const char **version);
/* tcp, shm, verbs or roce; none, before the first call. */
herdwick_status herdwick_server_transport(herdwick_client *client, size_t index,
                                          const char **transport);
/* Why the transport is not a better one; empty if it is the best. */
herdwick_status herdwick_server_fallback(herdwick_client *client, size_t index, const char **reason);
/* Passes each statistic of a group to a callback; of the general ones for "". */
typedef void (*herdwick_on_stat)(void *context, const char *name, const char *value);
herdwick_status herdwick_server_stats(herdwick_client *client, size_t index, const char *group,
                                      herdwick_on_stat on_stat, void *context);

/* ---- Sessions: many requests in flight to one server ------------------------------------------------ */

/* A session. It does not connect again: after HERDWICK_DISCONNECTED open another. */
typedef struct herdwick_session herdwick_session;

typedef enum herdwick_operation {
    HERDWICK_GET = 0,
    HERDWICK_SET = 1,
    HERDWICK_ADD = 2,
    HERDWICK_REPLACE = 3,
    HERDWICK_APPEND = 4,
    HERDWICK_PREPEND = 5,
    HERDWICK_CAS = 6,
    HERDWICK_DELETE = 7,
    HERDWICK_TOUCH = 8,
    HERDWICK_INCR = 9,
    HERDWICK_DECR = 10
} herdwick_operation;

/* A request. What an operation does not use is ignored. Key and value may be reused after
 * herdwick_submit. */
typedef struct herdwick_request {
    /* A herdwick_operation. */
    int32_t operation;
    uint32_t flags;
    uint32_t ttl;
    const void *key;
    size_t key_length;
    const void *value;
    size_t value_length;
    /* The version of HERDWICK_CAS, the delta of HERDWICK_INCR and HERDWICK_DECR. */
    uint64_t number;
    /* Comes back with the answer. */
    void *tag;
} herdwick_request;

/* An answer, valid until the callback returns. */
typedef struct herdwick_answer {
    void *tag;
    /* As of the call of that name; herdwick_error_text explains an error until the next answer. */
    herdwick_status status;
    /* Of HERDWICK_GET: its status is that of the answer. */
    herdwick_item item;
    /* Of HERDWICK_INCR and HERDWICK_DECR. */
    uint64_t number;
} herdwick_answer;

herdwick_status herdwick_session_open(const char *address, const herdwick_options *options,
                                      herdwick_session **session);
/* Requests in flight get no answer. NULL is allowed. */
void herdwick_session_free(herdwick_session *session);
/* Accepts a request: HERDWICK_OK, or HERDWICK_FULL. Requests for one key are executed in the order of
 * submission, and those for others in any. */
herdwick_status herdwick_submit(herdwick_session *session, const herdwick_request *request);
/* Sends what was submitted, as far as it is accepted now; herdwick_session_poll sends the rest. */
herdwick_status herdwick_session_flush(herdwick_session *session);
/* Each request has the deadline of the options, from its submission on. One that is not answered by then ends
 * the session: all in flight are answered with HERDWICK_TIMEOUT or HERDWICK_UNKNOWN_OUTCOME. An answer that has
 * arrived counts, however late the session is polled.
 *
 * Passes the answers that have arrived to a callback, without waiting, and stores their number at `count`
 * unless that is NULL. Each request that was accepted is answered once, also when this returns
 * HERDWICK_DISCONNECTED. The callback must not use the session. */
typedef void (*herdwick_on_answer)(void *context, const herdwick_answer *answer);
herdwick_status herdwick_session_poll(herdwick_session *session, herdwick_on_answer on_answer,
                                      void *context, size_t *count);
/* Sleeps until polling may bring something; not at all if nothing is in flight. */
herdwick_status herdwick_session_wait(herdwick_session *session);
/* For an event loop, instead of herdwick_session_wait: wait until the descriptor is readable, for as many
 * milliseconds as herdwick_session_arm has returned (0: not at all; -1: nothing is in flight), as with
 * poll(2); then poll the session, and arm it again. A request that is submitted after herdwick_session_arm
 * makes the descriptor readable, so that the loop does so. The descriptor stays the same, and belongs to the
 * session. */
int herdwick_session_descriptor(herdwick_session *session);
int herdwick_session_arm(herdwick_session *session);
/* tcp, shm, verbs or roce; valid as long as the session. */
const char *herdwick_session_transport(herdwick_session *session);

#ifdef __cplusplus
}
#endif

#endif
