/* A verbs program for the guest: one reliable queue pair on rxe0 with a peer that is told by its arguments.
 *
 *   peer QPN PSN VA RKEY    (of the other side, hexadecimal)
 *
 * It prints what the other side needs, receives until a SEND says "GO", then sends, writes and reads itself, and prints
 * what completed. Buffers start as a pattern, so that what is read and written can be checked from outside.
 */
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIZE 65536
#define OWN_PSN 0xfffffd

static void die(const char *what) { printf("FAILED %s\n", what); fflush(stdout); exit(1); }

static uint32_t fnv(const unsigned char *p, size_t n) {
    uint32_t h = 2166136261u;
    while (n--) h = (h ^ *p++) * 16777619u;
    return h;
}

int main(int argc, char **argv) {
    if (argc != 5) die("arguments");
    uint32_t qpn = strtoul(argv[1], 0, 16), psn = strtoul(argv[2], 0, 16), rkey = strtoul(argv[4], 0, 16);
    uint64_t va = strtoull(argv[3], 0, 16);
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list || !count) die("no RDMA device");
    struct ibv_context *c = ibv_open_device(list[0]);
    struct ibv_pd *pd = c ? ibv_alloc_pd(c) : 0;
    struct ibv_cq *cq = pd ? ibv_create_cq(c, 64, 0, 0, 0) : 0;
    if (!cq) die("cq");
    unsigned char *buf = aligned_alloc(4096, 2 * SIZE);
    for (int i = 0; i < 2 * SIZE; i++) buf[i] = (unsigned char)(i * 7 + 3);
    struct ibv_mr *mr = ibv_reg_mr(pd, buf, 2 * SIZE,
        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
    if (!mr) die("mr");
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    if (!qp) die("qp");
    struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    if (ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)) die("init");
    /* The index of the RoCEv2 IPv4 GID: ::ffff:10.77.0.2. */
    union ibv_gid gid;
    int index = -1;
    for (int i = 0; i < 16; i++)
        if (!ibv_query_gid(c, 1, i, &gid) && gid.raw[10] == 0xff && gid.raw[12] == 10) { index = i; break; }
    if (index < 0) die("no IPv4 GID");
    struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .rq_psn = psn,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = index, .hop_limit = 64, .traffic_class = 104 } } };
    unsigned char dst[16] = {0,0,0,0,0,0,0,0,0,0,0xff,0xff,10,77,0,1};
    memcpy(r.ah_attr.grh.dgid.raw, dst, 16);
    if (ibv_modify_qp(qp, &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)) die("rtr");
    struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = OWN_PSN,
        .max_rd_atomic = 4 };
    if (ibv_modify_qp(qp, &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                      IBV_QP_MAX_QP_RD_ATOMIC)) die("rts");
    for (int i = 0; i < 8; i++) {
        struct ibv_sge sg = { (uintptr_t)buf + i * 4096, 4096, mr->lkey };
        struct ibv_recv_wr w = { .wr_id = i, .sg_list = &sg, .num_sge = 1 }, *bad;
        if (ibv_post_recv(qp, &w, &bad)) die("post_recv");
    }
    printf("READY qpn=%x psn=%x va=%llx rkey=%x\n", qp->qp_num, OWN_PSN, (unsigned long long)(uintptr_t)buf, mr->rkey);
    fflush(stdout);
    struct ibv_wc wc;
    for (int going = 0; !going;) {
        int n = ibv_poll_cq(cq, 1, &wc);
        if (n < 0) die("poll");
        if (!n) { usleep(1000); continue; }
        unsigned char *at = buf + wc.wr_id * 4096;
        printf("RECV status=%d opcode=%d len=%u imm=%x hash=%08x\n", wc.status, wc.opcode, wc.byte_len,
               wc.wc_flags & IBV_WC_WITH_IMM ? ntohl(wc.imm_data) : 0, fnv(at, wc.opcode == IBV_WC_RECV ? wc.byte_len : 0));
        fflush(stdout);
        if (wc.status) die("receive");
        going = wc.opcode == IBV_WC_RECV && wc.byte_len == 2 && !memcmp(at, "GO", 2);
    }
    printf("WRITTEN hash=%08x\n", fnv(buf + SIZE, 5000));
    struct ibv_sge sge[5] = {
        { (uintptr_t)buf + 40000, 2500, mr->lkey }, { (uintptr_t)buf + 41000, 3000, mr->lkey },
        { (uintptr_t)buf + SIZE + 20000, 5000, mr->lkey }, { (uintptr_t)buf + SIZE + 30000, 8, mr->lkey },
        { (uintptr_t)buf + 42000, 1, mr->lkey } };
    enum ibv_wr_opcode op[5] = { IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD,
                                 IBV_WR_RDMA_WRITE_WITH_IMM };
    for (int i = 0; i < 5; i++) {
        struct ibv_send_wr w = { .wr_id = 100 + i, .sg_list = &sge[i], .num_sge = 1, .opcode = op[i],
            .send_flags = IBV_SEND_SIGNALED, .imm_data = htonl(0xabc0 + i) }, *bad;
        if (op[i] == IBV_WR_ATOMIC_FETCH_AND_ADD) {
            w.wr.atomic.remote_addr = va + 8192;
            w.wr.atomic.rkey = rkey;
            w.wr.atomic.compare_add = 5;
        } else {
            w.wr.rdma.remote_addr = va + (op[i] == IBV_WR_RDMA_READ ? 0 : 16384);
            w.wr.rdma.rkey = rkey;
        }
        if (ibv_post_send(qp, &w, &bad)) die("post_send");
    }
    for (int done = 0; done < 5;) {
        int n = ibv_poll_cq(cq, 1, &wc);
        if (n < 0) die("poll");
        if (!n) { usleep(1000); continue; }
        printf("SENT id=%llu status=%d (%s)\n", (unsigned long long)wc.wr_id, wc.status, ibv_wc_status_str(wc.status));
        fflush(stdout);
        if (wc.status) die("send");
        done++;
    }
    printf("READ hash=%08x atomic=%llx\n", fnv(buf + SIZE + 20000, 5000), *(unsigned long long *)(buf + SIZE + 30000));
    printf("DONE\n");
    fflush(stdout);
    sleep(1);
    return 0;
}
