"""The command `helm`, as far as README and docs use it, by Helm's library: for machines without the command."""

from __future__ import annotations

import argparse

import helm_python as helm

TIMEOUT_S = 300


def main() -> None:
    parser = argparse.ArgumentParser(prog="helm")
    parser.add_argument("command", choices=("install", "upgrade", "uninstall"))
    parser.add_argument("release")
    parser.add_argument("chart", nargs="?")
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--reset-then-reuse-values", action="store_true")
    parser.add_argument("--wait", action="store_true")
    given = parser.parse_args()
    if (given.chart is None) is not (given.command == "uninstall"):
        parser.error(f"{given.command} needs {'no' if given.chart else 'a'} chart")
    # Without --wait the command waits for hooks only.
    wait = "watcher" if given.wait else "hookOnly"
    with helm.Config(namespace=given.namespace) as config:
        if given.command == "uninstall":
            config.uninstall(given.release, timeout=TIMEOUT_S)
            return
        values = helm.parse_set_string(",".join(given.settings)) if given.settings else {}
        if given.command == "install":
            config.install(
                given.chart,
                given.release,
                values,
                namespace=given.namespace,
                create_namespace=given.create_namespace,
                wait=wait,
                timeout=TIMEOUT_S,
            )
            return
        if given.reset_then_reuse_values:
            values = {**config.get_values(given.release), **values}
        config.upgrade(
            given.chart,
            given.release,
            values,
            namespace=given.namespace,
            wait=wait,
            timeout=TIMEOUT_S,
            reset_values=given.reset_then_reuse_values,
        )


if __name__ == "__main__":
    main()
