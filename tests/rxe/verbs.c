/* One queue pair of the guest's RNIC, led by the judge: it dials the judge, says where it is, is
 * told where its peer is, and then does what each line says. Every line is answered by one.
 *
 *   verbs HOST PORT rc|uc|ud MTU GID_INDEX
 *
 *   here:    QPN PSN RKEY ADDRESS GID        there: QPN PSN RKEY ADDRESS QKEY GID
 *
 *   fill SEED OFFSET LENGTH                  bytes that `sum` of the same bytes agrees on
 *   sum OFFSET LENGTH                        FNV-1a of them
 *   recv OFFSET LENGTH
 *   send OFFSET LENGTH IMM                   IMM 0: without
 *   write OFFSET LENGTH THERE RKEY IMM
 *   read OFFSET LENGTH THERE RKEY
 *   add OFFSET THERE RKEY VALUE              the old value goes to OFFSET
 *   swap OFFSET THERE RKEY EXPECTED NEW
 *   poll                                     waits for one: OPCODE STATUS LENGTH IMM SOURCE
 *
 * Numbers are hexadecimal. It ends with the connection. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define MEMORY (1 << 20)
#define DEPTH 128
#define PATIENCE_S 20

static struct ibv_context *device;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_ah *ah;
static uint8_t *memory;
static unsigned there_qpn, there_qkey;
static FILE *orders, *judge;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

#define MUST(condition) do { if (!(condition)) fail(#condition); } while (0)

static void dial(const char *host, const char *port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(atoi(port)) };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

    MUST(inet_pton(AF_INET, host, &to.sin_addr) == 1);
    MUST(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    MUST((orders = fdopen(fd, "r")) && (judge = fdopen(dup(fd), "w")));
}

static enum ibv_qp_type transport(const char *name)
{
    return !strcmp(name, "rc") ? IBV_QPT_RC : !strcmp(name, "uc") ? IBV_QPT_UC : IBV_QPT_UD;
}

static void make(const char *name)
{
    int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
              IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_qp_init_attr init = {
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
        .qp_type = transport(name),
    };
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111 };
    struct ibv_pd *pd;
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;

    MUST(devices && devices[0] && (device = ibv_open_device(devices[0])));
    MUST((pd = ibv_alloc_pd(device)));
    MUST((memory = aligned_alloc(4096, MEMORY)));
    memset(memory, 0, MEMORY);
    MUST((mr = ibv_reg_mr(pd, memory, MEMORY, all)));
    MUST((init.send_cq = init.recv_cq = cq = ibv_create_cq(device, 2 * DEPTH, NULL, NULL, 0)));
    MUST((qp = ibv_create_qp(pd, &init)));
    if (qp->qp_type == IBV_QPT_RC)
        attr.qp_access_flags = all;
    else if (qp->qp_type == IBV_QPT_UC)
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    mask |= qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    MUST(!ibv_modify_qp(qp, &attr, mask));
}

static void show(unsigned psn, int gid_index)
{
    union ibv_gid gid;
    char text[INET6_ADDRSTRLEN];

    MUST(!ibv_query_gid(device, 1, gid_index, &gid));
    inet_ntop(AF_INET6, &gid, text, sizeof text);
    fprintf(judge, "%x %x %x %" PRIxPTR " %s\n", qp->qp_num, psn, mr->rkey, (uintptr_t)memory, text);
    fflush(judge);
}

static void join(unsigned psn, int mtu, int gid_index)
{
    char line[256], gid[64];
    unsigned there_psn, there_rkey;
    uint64_t there_address;
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .max_dest_rd_atomic = 16, .min_rnr_timer = 1,
        .ah_attr = { .is_global = 1, .port_num = 1,
                     .grh = { .hop_limit = 64, .sgid_index = gid_index } },
    };
    int connected = qp->qp_type != IBV_QPT_UD, reliable = qp->qp_type == IBV_QPT_RC;
    int ready = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int send = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;

    MUST(fgets(line, sizeof line, orders));
    MUST(sscanf(line, "%x %x %x %" SCNx64 " %x %63s", &there_qpn, &there_psn, &there_rkey,
                &there_address, &there_qkey, gid) == 6);
    MUST(inet_pton(AF_INET6, gid, &attr.ah_attr.grh.dgid) == 1);
    attr.dest_qp_num = there_qpn;
    attr.rq_psn = there_psn;
    attr.path_mtu = mtu == 256 ? IBV_MTU_256 : mtu == 512 ? IBV_MTU_512 :
                    mtu == 1024 ? IBV_MTU_1024 : mtu == 2048 ? IBV_MTU_2048 : IBV_MTU_4096;
    if (reliable)
        ready |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (connected ? ready : 0)));
    if (!connected)
        MUST((ah = ibv_create_ah(qp->pd, &attr.ah_attr)));
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = psn;
    attr.timeout = 14; /* 67 ms */
    attr.retry_cnt = attr.rnr_retry = 7;
    attr.max_rd_atomic = 16;
    MUST(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (reliable ? send : 0)));
    fprintf(judge, "ready\n");
}

static struct ibv_sge piece(uint64_t offset, uint64_t length)
{
    MUST(offset <= MEMORY && length <= MEMORY - offset);
    return (struct ibv_sge){ (uintptr_t)memory + offset, length, mr->lkey };
}

static void post_recv(uint64_t offset, uint64_t length)
{
    struct ibv_sge sge = piece(offset, length);
    struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;

    MUST(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_send_wr wr, uint64_t offset, uint64_t length)
{
    struct ibv_sge sge = piece(offset, length);
    struct ibv_send_wr *bad;

    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = htonl(wr.imm_data);
    if (ah) {
        wr.wr.ud.ah = ah;
        wr.wr.ud.remote_qpn = there_qpn;
        wr.wr.ud.remote_qkey = there_qkey;
    }
    MUST(!ibv_post_send(qp, &wr, &bad));
}

static void poll_one(void)
{
    time_t end = time(NULL) + PATIENCE_S;
    struct ibv_wc wc;
    int got;

    while ((got = ibv_poll_cq(cq, 1, &wc)) == 0)
        if (time(NULL) > end) {
            fprintf(judge, "nothing\n");
            return;
        }
    MUST(got == 1);
    fprintf(judge, "%x %x %x %x %x\n", wc.opcode, wc.status, wc.byte_len,
            wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0, wc.src_qp);
}

/* What both ends fill memory with: the upper byte of a linear congruence. */
static void fill(uint64_t seed, uint64_t offset, uint64_t length)
{
    uint32_t state = seed;

    piece(offset, length);
    for (uint64_t i = 0; i < length; i++) {
        state = state * 1664525 + 1013904223;
        memory[offset + i] = state >> 24;
    }
}

static uint64_t sum(uint64_t offset, uint64_t length)
{
    uint64_t hash = 0xcbf29ce484222325;

    piece(offset, length);
    for (uint64_t i = 0; i < length; i++)
        hash = (hash ^ memory[offset + i]) * 0x100000001b3;
    return hash;
}

static int obey(const char *verb, const uint64_t *n)
{
    struct ibv_send_wr wr = { 0 };

    if (!strcmp(verb, "poll")) {
        poll_one();
        return 0;
    } else if (!strcmp(verb, "sum")) {
        fprintf(judge, "%" PRIx64 "\n", sum(n[0], n[1]));
        return 0;
    } else if (!strcmp(verb, "fill")) {
        fill(n[0], n[1], n[2]);
    } else if (!strcmp(verb, "recv")) {
        post_recv(n[0], n[1]);
    } else if (!strcmp(verb, "send")) {
        wr.opcode = n[2] ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
        wr.imm_data = n[2];
        post_send(wr, n[0], n[1]);
    } else if (!strcmp(verb, "write") || !strcmp(verb, "read")) {
        wr.opcode = *verb == 'r' ? IBV_WR_RDMA_READ :
                    n[4] ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
        wr.imm_data = *verb == 'r' ? 0 : n[4];
        wr.wr.rdma.remote_addr = n[2];
        wr.wr.rdma.rkey = n[3];
        post_send(wr, n[0], n[1]);
    } else if (!strcmp(verb, "add") || !strcmp(verb, "swap")) {
        wr.opcode = *verb == 'a' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
        wr.wr.atomic.remote_addr = n[1];
        wr.wr.atomic.rkey = n[2];
        wr.wr.atomic.compare_add = n[3];
        wr.wr.atomic.swap = n[4];
        post_send(wr, n[0], 8);
    } else {
        return 1;
    }
    fprintf(judge, "done\n");
    return 0;
}

int main(int argc, char **argv)
{
    char line[256], verb[16];
    unsigned psn = (unsigned)getpid() * 7919 & 0xffffff;

    MUST(argc == 6);
    dial(argv[1], argv[2]);
    make(argv[3]);
    show(psn, atoi(argv[5]));
    join(psn, atoi(argv[4]), atoi(argv[5]));
    for (fflush(judge); fgets(line, sizeof line, orders); fflush(judge)) {
        uint64_t n[5] = { 0 };
        int got = sscanf(line, "%15s %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64,
                         verb, &n[0], &n[1], &n[2], &n[3], &n[4]);

        if (got < 1 || obey(verb, n))
            fprintf(judge, "what?\n");
    }
    return 0;
}
