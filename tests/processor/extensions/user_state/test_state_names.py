"""Names of user states: one for each owner, scope and content, and none of them to be guessed."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from freshet_serving.processor.extensions.user_state.state_names import UNKNOWN, StateNames

parts = st.tuples(st.binary(max_size=9), st.binary(max_size=9), st.binary(max_size=9))


@given(one=parts, other=parts)
def test_names_are_equal_only_of_equal_parts(one, other):
    """Also where the parts are the same bytes one after another."""
    names = StateNames(bytes(32))
    assert (names.name(*one)[:2] == names.name(*other)[:2]) == (one == other)
    assert names.name(*one) == StateNames(bytes(32)).name(*one)


def test_names_of_another_key_have_nothing_in_common():
    one, other = StateNames(bytes(32)), StateNames(b"1" * 32)
    assert not set(one.name(b"o", b"s", b"c", b"u")) & set(other.name(b"o", b"s", b"c", b"u"))
    assert one.owner(b"o") != other.owner(b"o")


def test_subject_is_the_user_of_whatever_owner_and_unknown_without_a_key():
    names = StateNames(bytes(32))
    assert names.name(b"o", b"s", b"c").subject == UNKNOWN
    assert names.name(b"o", b"s", b"c", b"u").subject == names.name(b"p", b"t", b"d", b"u").subject
    assert names.name(b"o", b"s", b"c", b"u").subject == names.subject(b"u") != names.subject(b"v")


def test_content_may_be_a_view_of_memory():
    names, content = StateNames(bytes(32)), np.arange(5)
    assert names.name(b"", b"s", content.view(np.uint8).data) == names.name(b"", b"s", content.tobytes())
