"""Installation, quick start, upgrade and uninstallation by the commands of README and docs, as they stand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import helm_python as helm

from e2e import stage
from e2e.conftest import CHART, RELEASE, SYSTEM, chart_values, system_namespace
from e2e.documents import Shell, blocks
from e2e.kubectl import Kubectl, until
from testing import ROOT

LAST_S = 300
METRICS = "v1beta1.external.metrics.k8s.io"
CLUSTER_WIDE = ("crd", "apiservice", "clusterrole", "clusterrolebinding")


def left_in_cluster(kubectl: Kubectl) -> list[str]:
    """Objects of LBG that are left, in all namespaces."""
    names = kubectl("get", ",".join(CLUSTER_WIDE), "-o", "name").split()
    volumes = kubectl("get", "pvc", "--all-namespaces", "-l", "lbg.dev/broker", "-o", "name").split()
    return [one for one in names if "lbg" in one or METRICS in one] + volumes


def test_the_commands_of_the_pages_install_use_upgrade_and_uninstall(
    release: helm.Config, desk: Kubectl, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    manifest = tmp_path / "examples" / "flights-group.yaml"
    text = manifest.read_text().replace("lbg-system", SYSTEM)
    assert text.count("image: lbg-sidecar:0.1.0") == 1, "a cluster may have the images of LBG only"
    manifest.write_text(text.replace("lbg-sidecar:0.1.0", stage.image("sidecar")))
    images = ",".join(f"images.{name}={stage.image(name)}" for name in chart_values()["images"])
    chart = f"helm install lbg charts/lbg --set {images}"
    shell = Shell(
        tmp_path,
        desk.namespace,
        {
            "lbg-system": SYSTEM,
            "{default}": f"{{{desk.namespace}}}",
            "helm install lbg charts/lbg": chart,
            "lbg orders": "lbg flights",
        },
    )
    keep, everything = blocks("operations.md", "Uninstall")

    shell.run(everything)
    assert left_in_cluster(desk) == []
    assert not desk.is_there("namespace", SYSTEM)

    install, create, publish, watch, scale, clean_up = blocks("kubernetes.md", "In five minutes")
    (readme,) = blocks("README.md", "On Kubernetes")
    assert readme.text.startswith(install.text.partition(" --wait")[0]), "README installs as the page does"
    shell.run(install)
    shown = shell.run(create)
    assert re.search(r"^flights +Exclusive +8 +", shown, re.MULTILINE), shown
    published = shell.run(publish)
    assert "24951 of 24951" in published.replace(",", ""), published
    watched = shell.watch(watch, seconds=3)
    assert re.search(r" to \w+ at 20", watched), watched
    shell.run(scale)
    until(
        lambda: len(desk.get("lbg", "flights")["status"].get("members", ())) >= 4,
        what="four members",
        timeout_s=LAST_S,
    )
    until(
        lambda: desk.get("lbg", "flights")["status"].get("lag") == 0,
        what="everything to be consumed",
        timeout_s=LAST_S,
    )

    shown = shell.run("\n".join(shell.text(readme).splitlines()[2:]))
    assert "flights" in shown
    (look,) = blocks("operations.md", "Operating LBG on Kubernetes")
    shown = shell.run(look)
    assert "loadbalancedgroup.lbg.dev/flights" in shown
    assert "broker.lbg.dev/main" in shown
    assert "Provisioned" in shown
    (no_metrics,) = blocks("kubernetes.md", "Without the operator")
    (upgrade,) = blocks("operations.md", "Upgrade")
    shell.run(no_metrics)
    assert not desk.is_there("apiservice", METRICS)
    shell.run(upgrade)
    assert desk.is_there("apiservice", METRICS)
    shell.run(keep)
    assert desk.is_there("lbg", "flights")
    shell.run(install)

    shell.run(clean_up)
    assert not desk.is_there("lbg", "flights")
    assert sorted(left_in_cluster(desk)) == [
        "apiservice.apiregistration.k8s.io/v1alpha1.lbg.dev",
        "customresourcedefinition.apiextensions.k8s.io/brokers.lbg.dev",
        "customresourcedefinition.apiextensions.k8s.io/loadbalancedgroups.lbg.dev",
    ]
    # The tests that follow find the release that they began with.
    system_namespace()
    release.install(CHART, RELEASE, chart_values(), namespace=SYSTEM, wait="watcher", timeout=180)
