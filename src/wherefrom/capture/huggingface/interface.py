"""Every attention of a transformers model, led through one function (floor 3), and everything as it was afterwards.

Takes masks, arguments and `Given` from beside it. Gives `watched` to the recorder and to the cuts: while it is open,
what the model's modules hand to their attention function goes to another, in this thread alone.

transformers looks attention functions and mask makers up in two tables, by a name that it reads from the model's
config. Where all parts of a model support "sdpa" that entry is replaced, else a name of our own is added, whose masks
are of the float kind that eager attention has. Configs are not written to. What is replaced is how their
`_attn_implementation` is read, so that the same model, run in another thread meanwhile, has its own. Whatever is not
watched in this thread is led on to the functions that were there, with the arguments that they would have got. An
attention implementation of the user's own is kept, and run; it must return the log-sum-exp.

A mask of None means that everything may be read: the mask makers here never leave a causal mask out. Only a caller
that says `is_causal=True` itself, and whose implementation would have heard it (eager does not), gets the lower
triangle.

A pass is one outermost forward of the model or of a model in it. Within it a module may run several times: its turns.
In the first pass of each kind (by the model that was called and the names of the arguments it was given) `bypass`
looks for attention that does not come through the interface; in all others that costs nothing.

Compiled models run uncompiled while they are watched. The switch for that is one for all threads: others that run
compiled models meanwhile are slower, not wrong. Quantised weights and models spread over devices need nothing:
attention is handed over behind them, and tensors stay where they are. Gradient checkpointing works if the backward
pass too runs while the model is watched; what it computes again is marked as a replay. `nn.DataParallel` runs copies
that it makes at each call: nothing is seen of them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from wherefrom.capture.fused import Attended
from wherefrom.capture.huggingface.arguments import (
    WEIGHTS,
    Arguments,
    lower_right,
    of_own_kernel,
    require_shapes,
    said,
)
from wherefrom.capture.huggingface.bypass import Bypass
from wherefrom.capture.huggingface.masks import mask_maker, readable
from wherefrom.capture.huggingface.replaced import (
    MISSING,
    Function,
    Replacements,
    Undo,
    compiler_off,
    in_backward,
    in_class,
    in_table,
)
from wherefrom.capture.huggingface.seen import AttentionFunction, Given
from wherefrom.capture.huggingface.sites import as_written, numbers_of
from wherefrom.capture.plain_calls import handled
from wherefrom.checks import check_kind
from wherefrom.errors import InputError, ModelError
from wherefrom.recording import Gap

OWN = "wherefrom"
"""The attention implementation of models that cannot be told "sdpa"."""
SDPA = "sdpa"
IMPLEMENTATION = "_attn_implementation"
_REPLACEMENTS = Replacements()
_OPEN: dict[int, list[Watch]] = {}  # by thread; the innermost last


@contextmanager
def watched(model: nn.Module, attention: AttentionFunction) -> Iterator[Watch]:
    """Lead every execution of attention by a model's modules, in this thread, through a function.

    On leaving, after an exception too, the model and transformers are as before. Several may be open at once, in one
    another or in several threads; of those on the same model the innermost has it.

    Args:
        model: a transformers model, or any module around some.
        attention: given each execution, it returns the outputs [B, H, T, V]; `Given.attend` computes them.

    Raises:
        InputError: no module, or weights are asked for with `output_attentions`; when attention runs: dropout.
        ModelError: a config that does not let its attention be switched; when attention runs: an argument that is not
            known and may change the scores, no keys, or an implementation of the user's own that returns no lse.
    """
    watch, thread = Watch(model, attention), threading.get_ident()
    with ExitStack() as stack:
        for key, put in watch.replacements():
            stack.enter_context(_REPLACEMENTS.held(key, put))
        _OPEN.setdefault(thread, []).append(watch)
        stack.callback(_left, thread, watch)
        watch.begin()
        yield watch


class Watch:
    """One model that is watched in one thread.

    Attributes:
        names: the path of each of its modules, as in `model.named_modules()`, by the module's id.
        passes: how many passes have ended.
    """

    def __init__(self, model: nn.Module, attention: AttentionFunction) -> None:
        check_kind("the model", model, nn.Module, way_out="Load one: AutoModelForCausalLM.from_pretrained(FOLDER).")
        self._model = as_written(model)
        modules = list(model.modules())
        self._compiled = any(_is_compiled(module) for module in modules)
        self._attention = attention
        self.names = {id(module): name for name, module in self._model.named_modules()}
        self.passes = 0
        configs = _configs(modules)
        self._users = _users_implementations()
        self._configs = {id(config): config for config in configs if _stock(config) not in self._users}
        self._kept = {_stock(config) for config in configs} & self._users.keys()
        self._models = _models(self._model, modules)
        able = all(getattr(part, "_supports_sdpa", True) for part in self._models)
        self.implementation = SDPA if able and SDPA not in self._users else OWN
        self._thread = threading.get_ident()
        self._running: list[nn.Module] = []  # the models whose forward runs, the outermost first
        self._turns: dict[int, int] = defaultdict(int)
        self._replayed: dict[int, int] = defaultdict(int)
        self._kinds: set[Hashable] = set()
        self._bypass: Bypass | None = None
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._most: dict[tuple[str, str], int] = {}
        self._hooks: list[Any] = []

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The attention that has passed by the interface so far; of several passes, the most calls of one."""
        counts = {key: max(self._most.get(key, 0), self._counts.get(key, 0)) for key in {**self._most, **self._counts}}
        layers = numbers_of({name for name, _ in counts})
        return tuple(Gap(name=name, what=what, layer=layers[name], calls=n) for (name, what), n in counts.items())

    def has_module(self, module: object) -> bool:
        """Return whether a module is one of the model's."""
        return id(module) in self.names

    def has_config(self, config: object) -> bool:
        """Return whether a config is one of the model's, and read here as that of another implementation."""
        return id(config) in self._configs

    def replacements(self) -> Iterator[tuple[Hashable, Callable[[], Undo]]]:
        """Yield what has to be replaced while the model is watched: what it is, and what puts it in.

        Raises:
            ModelError: a config that does not let its attention be switched.
        """
        functions, makers = _tables()
        for name in (SDPA, OWN, *sorted(self._kept - {SDPA})):
            yield ("function", name), partial(in_table, functions, name, partial(_function, name))
        yield ("maker", SDPA), partial(in_table, makers, SDPA, _maker)
        yield ("maker", OWN), partial(in_table, makers, OWN, lambda _: _maker(makers["eager"]))
        for owner in {_owner(config) for config in self._configs.values()}:
            yield ("config", owner), partial(in_class, owner, IMPLEMENTATION, _implementation)
        if self._compiled:
            yield "compiler", compiler_off

    def begin(self) -> None:
        """Hook the models, when all is replaced; see that weights are not asked for and that every config is reached.

        Raises:
            InputError: weights are asked for.
            ModelError: a config is not reached.
        """
        for config in self._configs.values():
            if getattr(config, IMPLEMENTATION, None) != self.implementation:
                raise _unswitched(config)
            if getattr(config, "_output_attentions", False):
                raise InputError(
                    "the model's config",
                    expected="no request for weights",
                    given=f"{type(config).__name__} with output_attentions=True",
                    way_out=WEIGHTS,
                )
        for part in self._models:
            self._hooks.append(part.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True))
            self._hooks.append(part.register_forward_hook(self._leave, always_call=True))

    def end(self) -> None:
        """Take the hooks away again."""
        for hook in self._hooks:
            hook.remove()
        if self._running:  # an interrupt, after which no hook is called
            self._end_pass()

    def attend(self, name: str, stock: Function, module: nn.Module, *given: Any, **named: Any) -> tuple[Tensor, None]:
        """Return the outputs [B, T, H, V] of one execution, contiguous, and None, as transformers wants them.

        Args:
            name: of the attention implementation that was asked for.
            stock: the function that it has when nobody watches.
            module: whose attention it is.
            given: q, k, v and the mask, as transformers hands them over.
            named: the other arguments.
        """
        execution = self._given(name, stock, module, *given, **named)
        with handled():
            output = self._attention(execution)
        return output.transpose(1, 2).contiguous(), None

    def _given(
        self,
        name: str,
        stock: Function,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        **named: Any,
    ) -> Given:
        where = said(module, self.names[id(module)])
        arguments = Arguments.of(where, named, query)
        require_shapes(where, query, key, value)
        kernel = None
        if name in self._kept:
            run = partial(stock, module, query, key, value, attention_mask, **named)
            kernel = partial(_by_own, where, name, run, query)
        causal = attention_mask is None and query.shape[2] > 1 and self._is_causal(module, arguments, kernel)
        if causal and kernel is not None and query.shape[2] != key.shape[2]:
            attention_mask, causal = lower_right(query, key), False
        replay = in_backward()
        return Given(
            name=self.names[id(module)],
            turn=self._turn(id(module), replay=replay),
            module=module,
            q=query,
            k=key,
            v=value,
            readable=readable(
                attention_mask,
                query,
                key,
                added=arguments.position_bias,
                indices=arguments.indices,
                causal=causal,
            ),
            scale=arguments.scale,
            softcap=arguments.softcap,
            sinks=arguments.sinks,
            kernel=kernel,
            replay=replay,
        )

    def _is_causal(self, module: nn.Module, arguments: Arguments, kernel: Any) -> bool:
        """Return whether no mask means the lower triangle."""
        if kernel is not None:  # gets no mask from us, and follows the module as transformers' own functions do
            return getattr(module, "is_causal", True) if arguments.is_causal is None else arguments.is_causal
        config = getattr(module, "config", getattr(self._model, "config", None))
        return arguments.is_causal is True and _stock(config) != "eager"

    def _turn(self, module: int, *, replay: bool) -> int:
        """Return how many times a module had run before in this pass.

        A replay has the turn of what it replays; of several they come back to front.
        """
        if replay:
            self._replayed[module] += 1
            ran = max(1, self._turns[module])
            return (-self._replayed[module]) % ran
        if not self._running:  # a layer that is called by itself: each call is a pass
            self._turns[module] = 0
        self._turns[module] += 1
        return self._turns[module] - 1

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != self._thread or in_backward():
            return
        if any(running is module for running in self._running):  # it was broken off by an interrupt
            self._end_pass()
        if not self._running:
            self._begin_pass(module, args, kwargs)
        self._running.append(module)
        if kwargs.get("output_attentions"):
            raise InputError(
                f"the call of {self.names[id(module)] or 'the model'} ({type(module).__name__})",
                expected="no request for weights",
                given="output_attentions=True",
                way_out=WEIGHTS,
            )

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        places = [place for place, running in enumerate(self._running) if running is module]
        if threading.get_ident() != self._thread or not places:
            return
        del self._running[places[-1] :]
        if not self._running:
            self._end_pass()

    def _begin_pass(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._turns.clear()
        self._replayed.clear()
        kind = (id(module), len(args), *sorted(name for name, value in kwargs.items() if value is not None))
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._bypass = Bypass(self.names, self._count)
            self._bypass.__enter__()  # type: ignore[no-untyped-call]

    def _end_pass(self) -> None:
        self._running.clear()
        self.passes += 1
        if self._bypass is not None:
            self._bypass.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._bypass = None
        for key, count in self._counts.items():
            self._most[key] = max(count, self._most.get(key, 0))
        self._counts.clear()

    def _count(self, name: str, what: str) -> None:
        self._counts[name, what] += 1


def _left(thread: int, watch: Watch) -> None:
    """Close a watch, wherever it stands among those of its thread."""
    _OPEN[thread].remove(watch)
    if not _OPEN[thread]:
        del _OPEN[thread]
    watch.end()


def _watches() -> Iterator[Watch]:
    """Yield the watches that count here, the innermost first: this thread's.

    The backward pass on an accelerator runs in a thread that torch started: there all count.
    """
    yield from reversed(_OPEN.get(threading.get_ident(), ()))
    if in_backward() and isinstance(threading.current_thread(), threading._DummyThread):
        for opened in list(_OPEN.values()):
            yield from reversed(opened)


def _function(name: str, stock: Any) -> Function:
    """Return what stands for an attention function in transformers' table while anyone watches."""

    def attention(module: nn.Module, *given: Any, **named: Any) -> Any:
        for watch in _watches():
            if watch.has_module(module):
                return watch.attend(name, stock, module, *given, **named)
        if stock is MISSING:
            raise ModelError(
                f"the attention of a {type(module).__name__}",
                expected="a module of the model that is watched",
                given="one that shares its config and is not in model.modules()",
                way_out="Register it as a submodule, or give it a copy of the config.",
            )
        return stock(module, *given, **named)

    attention.stock = stock  # type: ignore[attr-defined]
    return attention


def _maker(stock: Function) -> Function:
    """Return what stands for a mask maker in transformers' table while anyone watches."""
    own = mask_maker(stock)

    def maker(*args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("config")
        here = any(watch.has_config(config) for watch in _watches())
        return own(*args, **kwargs) if here else stock(*args, **kwargs)

    return maker


def _implementation(config: Any, stock: Callable[[Any], Any]) -> Any:
    """Return the attention implementation that a config has in this thread."""
    watch = next((watch for watch in _watches() if watch.has_config(config)), None)
    return stock(config) if watch is None else watch.implementation


def _by_own(where: str, name: str, run: Callable[[], Any], query: Tensor) -> Attended:
    """Run a user's own attention implementation."""
    return of_own_kernel(where, name, run(), query)


def _tables() -> tuple[dict[str, Function], dict[str, Function]]:
    """Return transformers' tables of attention functions and of mask makers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    functions: Any = AttentionInterface._global_mapping
    makers: Any = AttentionMaskInterface._global_mapping
    return functions, makers


def _users_implementations() -> dict[str, Function]:
    """Return the attention functions that a user registered: not transformers' own, nor fetched from the hub."""
    found = {}
    for name, function in _tables()[0].items():
        stock = getattr(function, "stock", function)  # what it replaces, of one of ours
        home = getattr(stock, "__module__", None) or ""
        if stock is not MISSING and not home.startswith("transformers.") and "/" not in name:
            found[name] = stock
    return found


def _stock(config: Any) -> Any:
    """Return the attention implementation of a config, whoever watches."""
    return getattr(config, f"{IMPLEMENTATION}_internal", None)


def _configs(modules: Iterable[nn.Module]) -> list[Any]:
    """Return all configs that a model's modules hold, and those in them, each once."""
    from transformers import PreTrainedConfig

    found: dict[int, Any] = {}
    left = [value for module in modules for value in vars(module).values() if isinstance(value, PreTrainedConfig)]
    while left:
        config = left.pop()
        if isinstance(config, PreTrainedConfig) and id(config) not in found:
            found[id(config)] = config
            left.extend(vars(config).values())
    return list(found.values())


def _models(model: nn.Module, modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the model and every model of transformers in it: what a user may call."""
    from transformers import PreTrainedModel

    return [module for module in modules if module is model or isinstance(module, PreTrainedModel)]


def _owner(config: Any) -> type:
    """Return the class that says how a config's attention implementation is read.

    Raises:
        ModelError: it is no property.
    """
    owner = next((one for one in type(config).__mro__ if IMPLEMENTATION in vars(one)), type(config))
    if not isinstance(vars(owner).get(IMPLEMENTATION), property):
        raise _unswitched(config)
    return owner


def _unswitched(config: Any) -> ModelError:
    return ModelError(
        "the model's config",
        expected="one whose attention implementation can be switched",
        given=f"{type(config).__name__}, which stays at {getattr(config, IMPLEMENTATION, None)!r}",
        way_out="Let its class leave `_attn_implementation` to transformers.",
    )


def _is_compiled(module: nn.Module) -> bool:
    forward = vars(module).get("forward")
    compiled = getattr(module, "_compiled_call_impl", None) is not None or hasattr(
        forward, "_torchdynamo_orig_callable"
    )
    return compiled or as_written(module) is not module
