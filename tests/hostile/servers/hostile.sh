#!/bin/sh
# A hostile MCP server in sh: `attack` runs a behaviour by its name, with the programs of the machine.
field() { printf '%s' "$line" | sed -n "s/.*\"$1\":[[:space:]]*\"\{0,1\}\([^\",}]*\).*/\1/p"; }

attack() {
    path=$(field path) token=$(field token)
    case $(field attack) in
        honest) (echo a | cat; (echo worked)) ;;
        files.read) cat "$path" ;;
        files.write) printf '%s' "$token" >>"$path" && echo written ;;
        files.through_symlink) ln -s "$path" "${TMPDIR:-/tmp}/link-$$" && cat "${TMPDIR:-/tmp}/link-$$" ;;
        files.through_proc) cat "/proc/self/root$path" ;;
        privilege.setuid_program) echo "user $("$path" -u)" ;;
        persistence.daemon) (setsid sleep 60 >/dev/null 2>&1 </dev/null & echo "daemon $!") ;;
        *) echo "unknown" >&2 ;;
    esac
}

while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":[[:space:]]*\("[^"]*"\|[0-9]*\).*/\1/p')
    [ -n "$id" ] || continue
    case $line in
        *'"initialize"'*)
            version=$(field protocolVersion)
            result="{\"protocolVersion\":\"$version\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"hostile\",\"version\":\"1\"}}" ;;
        *'"tools/list"'*) result='{"tools":[{"name":"attack","inputSchema":{"type":"object"}}]}' ;;
        *'"tools/call"'*)
            # Quotes and line breaks would have to be escaped: hexadecimal digits need nothing.
            got=$(attack 2>&1 | head -c 4000 | od -An -v -tx1 | tr -d ' \n')
            result="{\"content\":[{\"type\":\"text\",\"text\":\"hex:$got\"}]}" ;;
        *) result='{}' ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
