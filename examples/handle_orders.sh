#!/bin/sh
# A command behind `lbg sidecar` or `lbg consume`: LBG_COMMAND="sh handle_orders.sh"
while IFS= read -r line; do
    id=$(printf '%s\n' "$line" | sed 's/^{"id":"\([^"]*\)".*/\1/')  # the first field of every line
    printf '%s\n' "$line" | sed 's/.*"key":"\([^"]*\)".*"data":"\(.*\)"}$/\1 \2/; s/\\"/"/g' >&2  # the work: print key and data
    printf '{"id":"%s","verdict":"ack"}\n' "$id"
done
