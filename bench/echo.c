/* A stdio MCP server that costs next to nothing, so that a bench measures what stands before it.
 *
 * It finds the id of a line and answers with it; it does not parse more. What it is sent has the words
 * "id":N and "method":"... in it, without spaces. A call may say how long the text of its answer is to be ("size":N);
 * one with a progress token is told of progress first. In its environment:
 *   ECHO_LOG    a file, where the "call" argument of each call is written down, with its process and its time
 *   ECHO_TAKES  milliseconds between that line and the answer
 *   ECHO_TOOLS  so many tools are listed, tool0 and up, that take a text and a team
 *   ECHO_ERA    legacy or modern: knows the handshake only, or discovery only
 *   ECHO_START  milliseconds until it starts, as servers do that load much */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char line[1 << 21];
static char text[1 << 21];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* A process is its number and the time of its start: sandboxes have numbers of their own. */
static void note(int log, const char *call, double started) {
    char entry[256];
    int length = snprintf(entry, sizeof entry, "%.*s %d@%.6f %.9f\n", (int)strcspn(call, "\""), call, getpid(),
                          started, now());
    if (length >= (int)sizeof entry || write(log, entry, length) < 0) exit(1);
}

static void list_tools(int number) {
    fputs("\"result\":{\"tools\":[{\"name\":\"echo\",\"inputSchema\":{\"type\":\"object\"}}", stdout);
    for (int n = 0; n < number; n++)
        printf(",{\"name\":\"tool%d\",\"inputSchema\":{\"type\":\"object\",\"required\":[\"text\",\"team\"],"
               "\"properties\":{\"text\":{\"type\":\"string\"},\"team\":{\"type\":\"string\"}}}}", n);
    fputs("]}}\n", stdout);
}

static void call_tool(const char *from) {
    const char *size = strstr(from, "\"size\":");
    if (!size) {
        fputs("\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"ok\"}]}}\n", stdout);
        return;
    }
    long length = atol(size + 7);
    if (length < 0 || length >= (long)sizeof text) length = sizeof text - 1;
    fputs("\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"", stdout);
    fwrite(text, 1, (size_t)length, stdout);
    fputs("\"}]}}\n", stdout);
}

int main(void) {
    const char *tools = getenv("ECHO_TOOLS"), *era = getenv("ECHO_ERA"), *start = getenv("ECHO_START");
    const char *takes = getenv("ECHO_TAKES");
    const char *path = getenv("ECHO_LOG");
    int log = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    int legacy = !era || !strcmp(era, "legacy"), modern = !era || !strcmp(era, "modern");
    double started = now();
    if (start) usleep((useconds_t)atoi(start) * 1000);
    memset(text, 'x', sizeof text);
    setvbuf(stdout, NULL, _IOFBF, 1 << 17);
    while (fgets(line, sizeof line, stdin)) {
        char *id = strstr(line, "\"id\":");
        char *method = strstr(line, "\"method\":\"");
        if (!id || !method) continue; /* a notification */
        id += 5;
        int length = (int)strcspn(id, ",}");
        method += 10;
        char *call = log < 0 ? NULL : strstr(method, "\"call\":\"");
        if (call) note(log, call + 8, started);
        if (call && takes) usleep((useconds_t)atoi(takes) * 1000);
        char *token = strstr(method, "\"progressToken\":");
        if (token)
            printf("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%.*s,"
                   "\"progress\":1}}\n", (int)strcspn(token + 16, ",}"), token + 16);
        printf("{\"jsonrpc\":\"2.0\",\"id\":%.*s,", length, id);
        if (legacy && !strncmp(method, "initialize\"", 11))
            fputs("\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"tools\":{}},"
                  "\"serverInfo\":{\"name\":\"echo\",\"version\":\"1\"}}}\n", stdout);
        else if (modern && !strncmp(method, "server/discover\"", 16))
            fputs("\"result\":{\"resultType\":\"complete\",\"supportedVersions\":[\"2026-07-28\"],"
                  "\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"echo\",\"version\":\"1\"},"
                  "\"ttlMs\":0,\"cacheScope\":\"public\"}}\n", stdout);
        else if (!strncmp(method, "tools/call\"", 11))
            call_tool(method);
        else if (!strncmp(method, "tools/list\"", 11))
            list_tools(tools ? atoi(tools) : 0);
        else
            fputs("\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}\n", stdout);
        fflush(stdout);
    }
    return 0;
}
