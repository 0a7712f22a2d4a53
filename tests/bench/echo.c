/* A stdio MCP server that costs next to nothing, so that a bench measures what stands before it.
 *
 * It finds the id of a line and answers with it; it does not parse more. What it is sent begins with
 * {"jsonrpc":"2.0","id":N,"method":"..." */
#include <stdio.h>
#include <string.h>

static char line[1 << 20];

int main(void) {
    while (fgets(line, sizeof line, stdin)) {
        char *id = strstr(line, "\"id\":");
        char *method = strstr(line, "\"method\":\"");
        if (!id || !method || method < id) continue; /* a notification */
        id += 5;
        int length = (int)strcspn(id, ",}");
        method += 10;
        printf("{\"jsonrpc\":\"2.0\",\"id\":%.*s,", length, id);
        if (!strncmp(method, "initialize\"", 11))
            fputs("\"result\":{\"protocolVersion\":\"2025-11-25\",\"capabilities\":{\"tools\":{}},"
                  "\"serverInfo\":{\"name\":\"echo\",\"version\":\"1\"}}}\n", stdout);
        else if (!strncmp(method, "tools/call\"", 11))
            fputs("\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"ok\"}]}}\n", stdout);
        else if (!strncmp(method, "tools/list\"", 11))
            fputs("\"result\":{\"tools\":[{\"name\":\"echo\",\"inputSchema\":{\"type\":\"object\"}}]}}\n", stdout);
        else
            fputs("\"error\":{\"code\":-32601,\"message\":\"Method not found\"}}\n", stdout);
        fflush(stdout);
    }
    return 0;
}
