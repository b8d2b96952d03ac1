"""The attacks that need no model, on a server around a fake engine; `make attacks` has all of
them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from hocket.server.app import create_app
from hocket.server.settings import ServerSettings
from tests.security.attacks import content, http, recordings, sockets, voices
from tests.security.attacks.target import Attack, Target, Watch, attacked
from tests.support.fake_engine import FakePool
from tests.support.loopback import new_store, on_loopback

GROUPS = (
    *("keys", "paths", "framing", "request ids", "browsers", "sockets: handshake", "numbers"),
    *("addresses", "redirects", "address ranges", "data:"),
    *("voices: names", "voices: paths", "voices: forms"),
)
#: Longer waits than a busy machine's: freezes are what `make attacks` looks for.
FREEZE_SECONDS = 20.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    store = new_store(tmp_path_factory.mktemp("voices"))
    app = create_app(FakePool(), ServerSettings(api_keys=("a-key-of-attacks",)), store)
    with on_loopback(app) as address:
        target = Target(address, "a-key-of-attacks")
        yield target
        target.client.close()


@pytest.fixture(scope="module")
def watch(target: Target) -> Iterator[Watch]:
    with Watch(target) as watch:
        yield watch


@pytest.fixture(scope="module")
def attacks(target: Target) -> dict[str, list[Attack]]:
    modules = (http, sockets, content, recordings, voices)
    made = itertools.chain(*(module.attacks(target) for module in modules))
    return {
        group: list(found)
        for group, found in itertools.groupby(
            sorted(made, key=lambda attack: attack.group), lambda attack: attack.group
        )
    }


# The framework leaves the file of a form that does not end to the garbage collector.
@pytest.mark.filterwarnings("ignore:Unclosed file <tempfile.Spooled:ResourceWarning")
@pytest.mark.parametrize("group", GROUPS)
def test_attacks_hold(watch: Watch, attacks: dict[str, list[Attack]], group: str) -> None:
    verdicts = {attack.name: attacked(attack, watch, FREEZE_SECONDS) for attack in attacks[group]}
    assert {name: verdict for name, verdict in verdicts.items() if verdict is not None} == {}


def test_no_attack_is_made_twice(attacks: dict[str, list[Attack]]) -> None:
    for group, found in attacks.items():
        names = Counter(attack.name for attack in found)
        assert [name for name, count in names.items() if count > 1] == [], group


def test_a_server_that_does_not_hold_is_noticed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without keys, and for any name and page, the same attacks succeed."""
    settings = ServerSettings(allowed_hosts=("*",), cors_origins=("*",))
    app = create_app(FakePool(), settings, new_store(tmp_path_factory.mktemp("voices")))
    with on_loopback(app) as address:
        target = Target(address, "a-key-of-attacks")
        verdicts = [
            (attack.group, attack.act())
            for attack in http.attacks(target)
            if attack.group in ("keys", "browsers") and "/v1/models" in attack.name
        ]
        target.client.close()
    assert len([verdict for group, verdict in verdicts if group == "keys" and verdict]) == 10
    assert [verdict for group, verdict in verdicts if group == "browsers" and verdict]
