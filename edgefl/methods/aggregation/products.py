"""Means of the products of low-rank factors, cut again to their rank by singular values (FlexLoRA, Bai et al. 2024).

The product B A [out, in] stands at the address of B while it is averaged, so that what a method says of B's rows holds
for the product's.  One address is averaged at a time: the server holds one product for each client.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from math import inf

import torch
from torch import Tensor

from edgefl.methods.aggregation.combine import Mix, address_of, parts_of
from edgefl.methods.aggregation.options import AggregationOptions
from edgefl.methods.aggregation.robust_deltas import with_values
from edgefl.methods.aggregation.senders import Senders, cohort_counts
from edgefl.methods.aggregation.server_optimizers import server_step
from edgefl.methods.aggregation.updates import Updates
from edgefl.models.adapters import FACTORS
from edgefl.work import Address, Item, Payload
from edgefl.work.update import Update

FIRST, SECOND = (f".{factor}" for factor in FACTORS)


def average_products(
    tensors: Mapping[Address, Tensor],
    parameters: Mapping[Address, Tensor],
    updates: Sequence[Update],
    mix: Mix,
    weight: Callable[[Update], float],
    buffers: Container[Address],
    options: AggregationOptions,
) -> dict[Address, Tensor]:
    """New values of the parameters that change: factors by the mean of their products, all others as usual.

    ``clip`` limits the norm of a client's whole change, with that of its products.
    """
    updates = [with_values(update) for update in updates]  # each address is read by itself
    factors = {address for address in parameters if address.endswith((FIRST, SECOND))}
    if options.clip is not None:
        norms = [_norm(update, parameters) for update in updates]
        updates = [
            replace(u, weight_factor=u.weight_factor * (min(1.0, options.clip / norm) if 0 < norm < inf else 1.0))
            for u, norm in zip(updates, norms, strict=True)
        ]
        options = options.model_copy(update={"clip": None})
    _, cohort = cohort_counts(Senders(updates), parameters, [weight(u) for u in updates], options)
    rest = {address: tensor for address, tensor in parameters.items() if address not in factors}
    others = [_only(update, lambda item: item.source not in factors) for update in updates]
    deltas = Updates(others).deltas(rest, weight, options)
    parts = parts_of(rest, *deltas, lambda a, _: mix(a, cohort), buffers)
    changed = server_step(tensors, parts, buffers, options)
    for address in sorted(a for a in factors if a.endswith(SECOND)):
        mixed = mix(address, cohort)
        needed = {address, *(address_of(source) for source in mixed)}
        products = {a: product_at(parameters, a) for a in needed if a in parameters}
        sent = [with_products(update, products) for update in updates]
        own = {address: mixed}
        deltas = Updates(sent).deltas(products, weight, options)
        parts = parts_of(products, *deltas, lambda a, _, own=own: own.get(a, {}))  # type: ignore[misc]
        new = server_step({**tensors, **products}, parts, buffers, options)
        if address in new:
            second = parameters[address]
            first = _first(address)
            changed[first], changed[address] = factor_product(new.pop(address), second.shape[1])
            changed |= new  # moments of the server's optimizer
    return changed


def factor_product(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """A [rank, in] with orthonormal rows and B [out, rank], whose product is the best of this rank.

    Computed in float64, because a float32 SVD depends on the number of threads: A [16, 768] differed by 5e-6 with one
    and two, and by nothing in float64 (torch 2.13, November 2026).  Signs are free and differ between builds of LAPACK:
    the entry of a row of A that is largest in size is made positive.
    """
    if product.is_meta:
        return product.new_empty(rank, product.shape[1]), product.new_empty(product.shape[0], rank)
    left, values, right = torch.linalg.svd(product.double(), full_matrices=False)
    left, values, right = left[:, :rank], values[:rank], right[:rank]
    signs = right.gather(1, right.abs().argmax(1, keepdim=True)).sign()
    return (right * signs).to(product.dtype), (left * values * signs.T).to(product.dtype)


def _first(address: Address) -> Address:
    return address.removesuffix(SECOND) + FIRST


def product_at(tensors: Mapping[Address, Tensor], address: Address) -> Tensor:
    """B A [out, in] of the factors at the address of B and beside it."""
    return tensors[address] @ tensors[_first(address)]


def _only(update: Update, keep: Callable[[Item], bool]) -> Update:
    return replace(update, work=replace(update.work, up=tuple(payload.only(keep) for payload in update.work.up)))


def with_products(update: Update, products: Mapping[Address, Tensor]) -> Update:
    """The update with these products alone, as changes to the server's."""
    values = dict(update.uploaded_tensors())
    own = [a for a in products if a in values]
    items = tuple(Item(a, tuple(products[a].shape), str(products[a].dtype).removeprefix("torch."), a) for a in own)
    sent = {a: product_at(values, a).to(products[a].dtype) for a in own}
    work = replace(update.work, up=(Payload("products", items),))
    return replace(update, work=work, payloads={"products": sent}, base=dict(products))


def _norm(update: Update, parameters: Mapping[Address, Tensor]) -> float:
    products = {a: product_at(parameters, a) for a, _ in update.uploaded_tensors() if a.endswith(SECOND)}
    of_products = with_products(update, products).norm()
    return float((of_products**2 + update.norm({a for a in parameters if a.endswith((FIRST, SECOND))}) ** 2) ** 0.5)
