"""True if the operator receives events of every kind."""

from __future__ import annotations

from lbg_operator.kube.kinds import GROUP, SECRET
from lbg_operator.runtime.watches import PATIENCE_S, WatchReadiness, paths_of

SECRETS, GROUPS = "/api/v1/secrets", "/apis/lbg.dev/v1alpha1/loadbalancedgroups"


def test_each_kind_is_to_be_watched_everywhere_or_in_each_namespace() -> None:
    assert paths_of((GROUP, SECRET), ()) == (GROUPS, SECRETS)
    assert paths_of((SECRET,), ("a", "b")) == ("/api/v1/namespaces/a/secrets", "/api/v1/namespaces/b/secrets")


def test_it_is_ready_when_the_last_watch_is_open() -> None:
    openness = WatchReadiness((GROUPS, SECRETS))
    assert openness.unready(0.0) == f"the watch of {GROUPS} has not begun yet"
    openness.requested(GROUPS, 0.0)
    openness.opened(GROUPS)
    openness.requested(SECRETS, 0.0)
    assert openness.unready(PATIENCE_S + 1) == f"the watch of {SECRETS} has not begun yet"
    openness.opened(SECRETS)
    assert openness.unready(PATIENCE_S + 1) == ""


def test_a_watch_that_is_opened_anew_is_waited_for_and_not_for_ever() -> None:
    openness = WatchReadiness((SECRETS,))
    openness.opened(SECRETS)
    openness.requested(SECRETS, 100.0)
    openness.requested(SECRETS, 110.0)  # and again: it has been closed since the first time
    assert openness.unready(100.0 + PATIENCE_S) == ""
    assert (
        openness.unready(101.0 + PATIENCE_S)
        == f"the watch of {SECRETS} has been closed for {PATIENCE_S + 1:.0f} s"
    )
    openness.opened(SECRETS)
    assert openness.unready(1000.0) == ""


def test_an_api_server_may_be_behind_a_path_of_its_own_and_is_asked_for_more_than_watches() -> None:
    openness = WatchReadiness((SECRETS,))
    openness.opened("/k8s/clusters/one/api/v1/pods")
    openness.opened("/k8s/clusters/one/api/v1/secrets")
    openness.requested("/version", 0.0)
    assert openness.unready(1000.0) == ""
