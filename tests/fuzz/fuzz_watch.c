/* Any bytes from whoever connects to the watch: messages, or a broken link; texts end. */
#include "comm/watch_int.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int ends[2];
    if (size > 1 << 16 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return 0;
    ll_watch_link l = {.fd = ends[0]};
    static ll_watch_msg m;
    ll_watch_got got = LL_WATCH_NOTHING;
    for (size_t at = 0; at < size && got != LL_WATCH_BROKEN;) {
        size_t n = size - at < 700 ? size - at : 700; /* in pieces, as networks do */
        ssize_t put = send(ends[1], data + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (put <= 0) break;
        at += (size_t)put;
        while ((got = ll_watch_take(&l, &m)) == LL_WATCH_MESSAGE) {
            if (m.kind == LL_WATCH_STATE)
                LL_ASSERT(strlen(m.state.what) < LL_WATCH_NAME &&
                          strlen(m.state.site) < LL_WATCH_NAME &&
                          strlen(m.state.doing) < LL_WATCH_NAME);
            else
                LL_ASSERT(strlen(m.report) < LL_WATCH_REPORT);
        }
    }
    close(ends[0]);
    close(ends[1]);
    return 0;
}
