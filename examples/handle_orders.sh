#!/bin/sh
# A command behind `lbg sidecar` or `lbg consume`: LBG_COMMAND="sh handle_orders.sh"
while IFS= read -r line; do
    id=$(printf '%s\n' "$line" | sed 's/^{"id":"\([^"]*\)".*/\1/')  # the first field of every line
    printf '%s\n' "$line" >&2                                          # the work: standard error passes through
    printf '{"id":"%s","verdict":"ack"}\n' "$id"
done
