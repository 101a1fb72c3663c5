"""The names of modules that no variable holds itself."""

from types import SimpleNamespace

from torch import nn

from meta_magic import record


def names_in(trace):
    return [node.name for node in trace.modules]


def test_modules_of_a_list_are_named_by_their_place():
    with record() as trace:
        layers = [nn.Linear(2, 2) for _ in range(3)]
    assert layers
    assert names_in(trace) == ["layers[0]", "layers[1]", "layers[2]"]


def test_modules_of_an_object_are_named_by_their_attribute():
    with record() as trace:
        trainer = SimpleNamespace(model=nn.Linear(2, 2))
        gans = [(nn.Linear(2, 2), {"d": nn.Linear(2, 2)})]
    assert trainer
    assert gans
    assert names_in(trace) == ["trainer.model", "gans[0][0]", "gans[0][1]['d']"]


def test_a_list_that_a_module_does_not_register_names_what_it_holds():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.layers = [nn.Linear(2, 2)]

    with record() as trace:
        model = Model()
    assert model is not None
    assert names_in(trace) == ["model", "model.layers[0]"]


def test_what_nothing_holds_by_a_name_has_none():
    with record() as trace:
        _hidden = [nn.Linear(2, 2)]
    assert _hidden
    assert names_in(trace) == [""]


class Nosy:
    """Notes each question that it is asked."""

    asked = []  # noqa: RUF012  for all of them

    def __init__(self, model):
        object.__setattr__(self, "model", model)

    def __getattribute__(self, name):
        Nosy.asked.append(name)
        return object.__getattribute__(self, name)

    def __eq__(self, other):
        Nosy.asked.append("==")
        return False

    def __hash__(self):
        Nosy.asked.append("hash")
        return 1

    def __repr__(self):
        Nosy.asked.append("repr")
        return ""


class Proxy:
    """Makes its ``__dict__`` when it is asked."""

    @property
    def __dict__(self):
        Nosy.asked.append("__dict__")
        return {}


class Listed(list):
    def __iter__(self):
        Nosy.asked.append("iter")
        return super().__iter__()


def test_nothing_of_the_users_is_called():
    proxy = Proxy()
    with record() as trace:
        nosy = Nosy(nn.Linear(2, 2))
        listed = Listed([nn.Linear(2, 2)])
        keyed = {nosy: nn.Linear(2, 2)}
        Nosy.asked.clear()
    asked = [*Nosy.asked]
    assert keyed
    assert proxy is not None
    assert len(listed) == 1
    assert names_in(trace) == ["nosy.model", "listed[0]", ""]
    assert asked == []
