# ruff: noqa: E501 - a part stands on a line or two
"""Odd modules as towers: what people write in torch, drawn part by part, in a plug-in that a scenario trains.

A part is what a constructor makes and what a forward pass does with features ``x`` ``[batch, 8]``, of which it gives
others of that shape.  What a part does may be impossible without data, or nothing at all that edgefl takes: then it is
to be refused.
"""

from __future__ import annotations

import yaml
from hypothesis import strategies as st

from fuzzing.case import Case

Part = tuple[str, str]
"""Lines of the constructor and lines of ``forward``."""

PARTS: dict[str, Part] = {
    # layers
    "linear": ("self.a = nn.Linear(8, 8)", "x = self.a(x)"),
    "mlp": ("self.a = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))", "x = x + self.a(x)"),
    "bilinear": ("self.a = nn.Bilinear(8, 8, 8)", "x = self.a(x, x.tanh())"),
    "prelu": ("self.a = nn.PReLU(8)", "x = self.a(x)"),
    "glu": ("self.a = nn.Linear(8, 16)", "x = F.glu(self.a(x))"),
    "normed": ("self.a = nn.LayerNorm(8)\nself.b = nn.RMSNorm(8)", "x = self.b(self.a(x))"),
    "batch norm": ("self.a = nn.BatchNorm1d(8)", "x = self.a(x)"),
    "batch norm, cumulative": ("self.a = nn.BatchNorm1d(8, momentum=None)", "x = self.a(x)"),
    "batch norm without statistics": ("self.a = nn.BatchNorm1d(8, track_running_stats=False)", "x = self.a(x)"),
    "group and instance norm": (
        "self.a = nn.GroupNorm(2, 8)\nself.b = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)",
        "x = self.b(self.a(x).view(-1, 4, 2)).flatten(1)",
    ),
    "local response": ("", "x = F.local_response_norm(x.view(-1, 4, 2), 2).flatten(1)"),
    "attention": ("self.a = nn.MultiheadAttention(4, 2, batch_first=True)",
                  "t = x.view(-1, 2, 4)\nx = (t + self.a(t, t, t)[0]).flatten(1)"),
    "attention with dropout": ("self.a = nn.MultiheadAttention(4, 2, dropout=0.1)",
                               "t = x.view(-1, 2, 4)\nx = self.a(t, t, t, need_weights=False)[0].flatten(1)"),
    "encoder layer": ("self.a = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)",
                      "x = self.a(x.view(-1, 2, 4)).flatten(1)"),
    "fused attention with a mask": (
        "self.register_buffer('mask', torch.ones(2, 2).tril().bool())\nself.a = nn.Linear(4, 12)",
        "q, k, v = self.a(x.view(-1, 2, 4)).chunk(3, -1)\n"
        "x = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).flatten(1)",
    ),
    "causal attention": ("self.a = nn.Linear(4, 12)",
                         "q, k, v = self.a(x.view(-1, 1, 2, 4)).chunk(3, -1)\n"
                         "x = F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(1)"),
    "linear attention": ("self.a = nn.Linear(4, 12)",
                         "q, k, v = self.a(x.view(-1, 2, 4)).chunk(3, -1)\n"
                         "x = torch.einsum('bnd,bde->bne', q.softmax(-1), torch.einsum('bnd,bne->bde', "
                         "k.softmax(1), v)).flatten(1)"),
    "gru": ("self.a = nn.GRU(4, 4, batch_first=True)", "x = self.a(x.view(-1, 2, 4))[0].flatten(1)"),
    "lstm both ways": ("self.a = nn.LSTM(4, 2, 2, batch_first=True, bidirectional=True)",
                       "x = self.a(x.view(-1, 2, 4))[0].flatten(1)"),
    "lstm with projection": ("self.a = nn.LSTM(4, 8, proj_size=4, batch_first=True)",
                             "x = self.a(x.view(-1, 2, 4))[0].flatten(1)"),
    "rnn with dropout": ("self.a = nn.RNN(4, 4, 2, dropout=0.2)", "x = self.a(x.view(-1, 2, 4))[0].flatten(1)"),
    "cells": ("self.a = nn.GRUCell(8, 8)\nself.b = nn.LSTMCell(8, 8)", "x = self.a(x, self.b(x)[0])"),
    "convolutions": ("self.a = nn.Conv1d(2, 4, 3, padding=1)\nself.b = nn.ConvTranspose1d(4, 2, 3, padding=1)",
                     "x = self.b(self.a(x.view(-1, 2, 4))).flatten(1)"),
    "depthwise": ("self.a = nn.Conv1d(2, 2, 3, padding='same', dilation=2, groups=2, padding_mode='circular')",
                  "x = self.a(x.view(-1, 2, 4)).flatten(1)"),
    "convolution in 3d": ("self.a = nn.Conv3d(1, 1, (1, 3, 1), padding=(0, 1, 0))",
                          "x = self.a(x.view(-1, 1, 2, 2, 2)).flatten(1)"),
    "deformed grid": ("self.a = nn.Parameter(torch.eye(2, 3)[None])",
                      "g = F.affine_grid(self.a.expand(len(x), -1, -1), [len(x), 2, 2, 2], align_corners=False)\n"
                      "x = F.grid_sample(x.view(-1, 2, 2, 2), g, align_corners=False).flatten(1)"),
    "unfold": ("self.a = nn.Linear(4, 4)",
               "p = F.unfold(x.view(-1, 2, 2, 2), 2, padding=1, stride=2)\n"
               "x = F.fold(p, (2, 2), 2, padding=1, stride=2).flatten(1)"),
    "pools": ("", "p, i = F.max_pool1d(x.view(-1, 2, 4), 2, return_indices=True)\n"
                  "x = F.max_unpool1d(p, i, 2).flatten(1) + F.avg_pool1d(x, 3, 1, 1)"),
    "fractional pool": ("self.a = nn.FractionalMaxPool2d(1, output_size=1)",
                        "x = x + self.a(x.view(-1, 2, 2, 2)).flatten(1).repeat(1, 4)"),
    "adaptive pool": ("", "x = F.adaptive_avg_pool1d(x[:, None], 4)[:, 0].repeat(1, 2) "
                          "+ F.adaptive_max_pool1d(x[:, None], 8)[:, 0]"),
    "resized": ("", "x = F.interpolate(x.view(-1, 1, 2, 4), (4, 8), mode='bicubic')[:, :, ::2, ::2].flatten(1)"),
    "shuffled pixels": ("", "x = F.pixel_shuffle(x.view(-1, 8, 1, 1), 2).flatten(1)"),
    "padded": ("", "x = F.pad(x.view(-1, 2, 4), (1, 1), mode='reflect')[..., 1:-1].flatten(1)"),
    "rolled": ("", "x = x.roll(1, 1).flip(1) + x.view(-1, 2, 4).transpose(1, 2).reshape(-1, 8)"),
    # products of its own
    "einsum of two inputs": ("", "x = torch.einsum('bi,bj->bij', x, x.softmax(1)).sum(1)"),
    "einsum with a parameter": ("self.a = nn.Parameter(torch.randn(8, 8, 8) / 8)",
                                "x = torch.einsum('bi,bj,ijk->bk', x, x.tanh(), self.a)"),
    "mv": ("self.a = nn.Parameter(torch.randn(8))", "x = x * torch.mv(x, self.a)[:, None].tanh()"),
    "addmv": ("self.a = nn.Parameter(torch.randn(8))",
              "x = x + torch.addmv(x[:, 0], x, self.a)[:, None].tanh()"),
    "dot and outer": ("self.a = nn.Parameter(torch.randn(8))",
                      "x = x @ torch.outer(self.a, self.a).tanh() + self.a.dot(self.a).tanh()"),
    "batched sums": ("self.a = nn.Parameter(torch.zeros(1, 2))",
                     "t = x.view(-1, 4, 2)\nx = torch.baddbmm(self.a, t, t.transpose(1, 2) @ t / 8).flatten(1)"),
    "addbmm": ("self.a = nn.Parameter(torch.zeros(4, 4))",
               "t = x.view(-1, 4, 2)\nx = x + torch.addbmm(self.a, t, t.mT).tanh().flatten().mean()"),
    "addr": ("self.a = nn.Parameter(torch.zeros(8, 8))", "x = x @ torch.addr(self.a, x[0], x[1]).tanh()"),
    "kron": ("self.a = nn.Parameter(torch.randn(2, 2) / 2)", "x = x @ torch.kron(self.a, torch.kron(self.a, self.a))"),
    "tensordot": ("self.a = nn.Parameter(torch.randn(2, 4, 8) / 4)", "x = torch.tensordot(x.view(-1, 2, 4), self.a, 2)"),
    "multi_dot": ("self.a = nn.Parameter(torch.eye(8))", "x = torch.linalg.multi_dot([x, self.a, self.a.T])"),
    "matrix power": ("self.a = nn.Parameter(torch.eye(8) / 2)", "x = x @ torch.linalg.matrix_power(self.a, 3)"),
    "matrix exponential": ("self.a = nn.Parameter(torch.zeros(8, 8))", "x = x @ torch.matrix_exp(self.a)"),
    "inverse": ("self.a = nn.Parameter(torch.eye(8))", "x = x @ torch.linalg.inv(self.a + 9 * torch.eye(8))"),
    "solve": ("self.a = nn.Parameter(torch.eye(8))", "x = torch.linalg.solve(self.a + 9 * torch.eye(8), x.T).T"),
    "cholesky": ("", "x = x @ torch.linalg.cholesky(x.T @ x + 9 * torch.eye(8)).tanh()"),
    "svd": ("self.a = nn.Parameter(torch.eye(8))", "x = x * torch.linalg.svdvals(self.a + x.T @ x)[0].tanh()"),
    "qr": ("self.a = nn.Parameter(torch.eye(8))", "x = x @ torch.linalg.qr(self.a)[0]"),
    "determinant": ("self.a = nn.Parameter(torch.eye(8))", "x = x * torch.linalg.det(self.a).tanh()"),
    "distances": ("self.a = nn.Parameter(torch.randn(8, 8))", "x = torch.cdist(x, self.a)"),
    "cosine": ("self.a = nn.Parameter(torch.randn(8, 8))", "x = F.cosine_similarity(x[:, None], self.a, -1)"),
    "vdot": ("self.a = nn.Parameter(torch.randn(8))", "x = x * torch.vdot(self.a, x[0]).tanh()"),
    "int8 products": ("", "x = x + torch._int_mm(x.to(torch.int8), torch.ones(8, 8, dtype=torch.int8)).float() * 0"),
    "inner products": ("", "x = x + torch.inner(x, x).mean(1, keepdim=True).tanh()"),
    "fused linear activation": ("self.a = nn.Parameter(torch.randn(8, 8) / 8)\nself.b = nn.Parameter(torch.zeros(8))",
                                "x = torch.addmm(self.b, x, self.a, beta=0.5, alpha=2)"),
    "trilinear": ("", "x = torch._trilinear(x, x, x.tanh(), [], [], [], [1])[:, None] + x"),
    # complex numbers and transforms
    "complex parameter": ("self.a = nn.Parameter(torch.randn(8, 8, dtype=torch.complex64) / 8)",
                          "x = (x.to(torch.complex64) @ self.a).real"),
    "complex buffer": ("self.register_buffer('a', torch.polar(torch.ones(4), torch.arange(4.0)), persistent=False)",
                       "x = torch.view_as_real(torch.view_as_complex(x.view(-1, 4, 2)) * self.a).flatten(1)"),
    "complex values": ("self.a = nn.Parameter(torch.randn(8, 8, 2) / 8)",
                       "x = (x.to(torch.complex64) @ torch.view_as_complex(self.a)).abs()"),
    "complex linear": ("self.a = nn.Linear(8, 8, dtype=torch.complex64)", "x = self.a(x.to(torch.complex64)).real"),
    "fourier mixing": ("", "x = torch.fft.fft2(x.view(-1, 2, 4)).real.flatten(1)"),
    "fourier filter": ("self.a = nn.Parameter(torch.ones(5, 2))",
                       "x = torch.fft.irfft(torch.fft.rfft(x) * torch.view_as_complex(self.a), 8)"),
    "shifted spectrum": ("", "x = torch.fft.fftshift(torch.fft.fft(x), dim=1).angle()"),
    "short fourier": ("self.register_buffer('a', torch.hann_window(4))",
                      "x = torch.stft(x, 4, 2, window=self.a, return_complex=True).abs().flatten(1)[:, :8]"),
    "hilbert": ("", "x = torch.fft.ifft(torch.fft.fft(x)).imag + x"),
    # sparse tensors
    "sparse buffer": ("self.register_buffer('a', torch.sparse_coo_tensor(torch.arange(8).repeat(2, 1), torch.ones(8), "
                      "(8, 8)))", "x = torch.sparse.mm(self.a, x.T).T"),
    "sparse by conversion": ("self.register_buffer('a', torch.eye(8).to_sparse())", "x = torch.sparse.mm(self.a, x.T).T"),
    "rows of a matrix": ("self.register_buffer('a', torch.eye(8).to_sparse_csr())", "x = (self.a @ x.T).T"),
    "sparse parameter": ("self.a = nn.Parameter(torch.sparse_coo_tensor(torch.arange(8).repeat(2, 1), torch.ones(8), "
                         "(8, 8)))", "x = torch.sparse.mm(self.a, x.T).T"),
    "sparse in forward": ("", "x = x.to_sparse().to_dense()"),
    "sparse gradient": ("self.a = nn.Embedding(9, 8, sparse=True)", "x = x + self.a(torch.arange(8))[0]"),
    "sparse gather": ("", "x = torch.gather(x, 1, torch.zeros(len(x), 8, dtype=torch.long), sparse_grad=True)"),
    "nested tensor": ("", "x = torch.nested.nested_tensor([x[0], x[1]]).to_padded_tensor(0.0).mean(0) + x"),
    # embeddings and indices
    "embedding with a norm": ("self.a = nn.Embedding(9, 8, max_norm=1.0)",
                              "x = x + self.a(torch.arange(len(x)) % 9)"),
    "embedding by frequency": ("self.a = nn.Embedding(9, 8, padding_idx=0, scale_grad_by_freq=True)",
                               "x = x + self.a(torch.zeros(len(x), dtype=torch.long))"),
    "bags": ("self.a = nn.EmbeddingBag(9, 8, mode='max')\nself.b = nn.EmbeddingBag(9, 8, mode='mean')",
             "i = torch.ones(len(x), 3, dtype=torch.long)\nx = x + self.a(i) + self.b(i)"),
    "codebook": ("self.a = nn.Parameter(torch.randn(4, 8))",
                 "c = self.a[torch.cdist(x, self.a).argmin(1)]\nx = x + (c - x).detach()"),
    "one-hot": ("", "x = F.one_hot(x.argmax(1), 8).float() * x"),
    "sorted": ("", "x = x.sort(1)[0] + x.topk(3, 1)[0].mean(1, keepdim=True)"),
    "scattered": ("", "x = torch.zeros_like(x).scatter_add(1, x.argsort(1), x)"),
    "index put": ("", "y = x.clone()\ny[torch.arange(len(x)), x.argmax(1)] = 0\nx = y"),
    "index add": ("", "x = torch.zeros_like(x).index_add(0, torch.zeros(len(x), dtype=torch.long), x) + x"),
    "masked fill": ("", "x = x.masked_fill(x < 0, 0.0) + torch.where(x > 0, x, 0.1 * x)"),
    "masked scatter": ("", "x = x.masked_scatter(x < 0, torch.zeros_like(x))"),
    "cumulated": ("", "x = x.cumsum(1) / 8 + x.logcumsumexp(1).tanh() + x.cummax(1)[0]"),
    "quantile": ("", "x = x - x.quantile(0.5, 1, keepdim=True) - x.median(1, keepdim=True)[0]"),
    "histogram": ("", "x = x + torch.bincount(x.argmax(1), minlength=8)"),
    "bucketed": ("self.a = nn.Embedding(9, 8)", "x = self.a(torch.bucketize(x[:, 0].detach(), torch.arange(8.0)))"),
    # what depends on values
    "mask as index": ("", "x = x[x.sum(1) > -9e9]"),
    "nonzero": ("", "x = x + x.nonzero().float().mean()"),
    "item": ("", "x = x * float(x.mean().tanh())"),
    "if on a value": ("", "if x.sum() > 0:\n    x = x + 1"),
    "unique": ("", "x = x + torch.unique(x.argmax(1)).float().mean()"),
    "numpy": ("", "x = x + torch.from_numpy(x.detach().numpy().mean(1, keepdims=True))"),
    "as list": ("", "x = x + sum(x.flatten().tolist()) * 0"),
    "isnan": ("", "assert not torch.isnan(x).any()"),
    "torch._assert": ("", "torch._assert(x.isfinite().all(), 'not finite')"),
    "async assert": ("", "torch._assert_async(x.isfinite().all())"),
    "routed experts": ("self.a = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))\nself.b = nn.Linear(8, 2)",
                       "r = self.b(x).argmax(1)\ny = torch.zeros_like(x)\nfor i, e in enumerate(self.a):\n"
                       "    y[r == i] = e(x[r == i])\nx = y"),
    "soft experts": ("self.a = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))\nself.b = nn.Linear(8, 3)",
                     "g = self.b(x).softmax(1)\nx = sum(g[:, i : i + 1] * e(x) for i, e in enumerate(self.a))"),
    "stacked experts": ("self.a = nn.Parameter(torch.randn(3, 8, 8) / 8)\nself.b = nn.Linear(8, 3)",
                        "x = (self.a[self.b(x).argmax(1)] @ x[:, :, None])[:, :, 0]"),
    # random draws
    "dropouts": ("self.a = nn.Dropout(0.2)\nself.b = nn.AlphaDropout(0.1)\nself.c = nn.FeatureAlphaDropout(0.1)\n"
                 "self.d = nn.Dropout1d(0.1)",
                 "x = self.d(self.c(self.b(self.a(x)).view(-1, 2, 4))).flatten(1)"),
    "dropout at all times": ("", "x = F.dropout(x, 0.3, training=True)"),
    "dropout in place": ("self.a = nn.Dropout(0.2, inplace=True)", "x = self.a(x.clone())"),
    "dropout of 1": ("self.a = nn.Dropout(1.0)", "x = x + self.a(x)"),
    "random slopes": ("self.a = nn.RReLU()", "x = self.a(x)"),
    "noise": ("", "x = x + 0.1 * torch.randn_like(x) if self.training else x"),
    "gumbel": ("", "x = F.gumbel_softmax(x, hard=True) * 8"),
    "drawn": ("", "x = x * torch.bernoulli(torch.full((len(x), 1), 0.9)) + torch.rand(8) * 0.1"),
    "multinomial": ("", "x = x.gather(1, torch.multinomial(x.softmax(1), 8))"),
    "permuted": ("", "x = x[:, torch.randperm(8)]"),
    "a generator": ("self.generator = torch.Generator()",
                    "x = x + torch.rand(8, generator=self.generator) * 0.1"),
    "distribution": ("", "x = torch.distributions.Normal(x, 1.0).rsample()"),
    "numpy's draws": ("", "import numpy as np\nx = x * float(np.random.rand())"),
    "skipped at random": ("self.a = nn.Linear(8, 8)", "import random\nif random.random() < 0.5:\n    x = x + self.a(x)"),
    "in training only": ("self.a = nn.Linear(8, 8)", "x = self.a(x) if self.training else x"),
    "in evaluation only": ("self.a = nn.Linear(8, 8)", "x = x if self.training else self.a(x)"),
    # parameters
    "spectral norm": ("self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))", "x = self.a(x)"),
    "spectral norm by a hook": ("self.a = nn.utils.spectral_norm(nn.Linear(8, 8))", "x = self.a(x)"),
    "weight norm": ("self.a = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))", "x = self.a(x)"),
    "weight norm by a hook": ("self.a = nn.utils.weight_norm(nn.Linear(8, 8))", "x = self.a(x)"),
    "orthogonal": ("self.a = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8))", "x = self.a(x)"),
    "orthogonal by products": ("self.a = nn.utils.parametrizations.orthogonal(nn.Linear(8, 8), 'householder', "
                               "use_trivialization=False)", "x = self.a(x)"),
    "symmetric": ("import torch.nn.utils.parametrize as p\nself.a = nn.Linear(8, 8)\n"
                  "p.register_parametrization(self.a, 'weight', Symmetric())", "x = self.a(x)"),
    "pruned": ("import torch.nn.utils.prune as p\nself.a = p.random_unstructured(nn.Linear(8, 8), 'weight', 0.5)",
               "x = self.a(x)"),
    "started orthogonal": ("self.a = nn.Linear(8, 8)\nnn.init.orthogonal_(self.a.weight)\n"
                           "nn.init.trunc_normal_(self.a.bias)", "x = self.a(x)"),
    "lazy": ("self.a = nn.LazyLinear(8)", "x = self.a(x)"),
    "lazy statistics": ("self.a = nn.LazyBatchNorm1d(affine=False)", "x = self.a(x)"),
    "made in forward": ("", "if not hasattr(self, 'a'):\n    self.a = nn.Parameter(torch.zeros(8))\nx = x + self.a"),
    "unused": ("self.a = nn.Linear(8, 8)\nself.b = nn.Parameter(torch.zeros(3))", "x = x.relu()"),
    "empty parameter": ("self.a = nn.Parameter(torch.zeros(0, 8))", "x = x + self.a.sum()"),
    "scalar parameter": ("self.a = nn.Parameter(torch.tensor(1.0))", "x = x * self.a"),
    "frozen": ("self.a = nn.Linear(8, 8).requires_grad_(False)", "x = self.a(x)"),
    "integer parameter": ("self.a = nn.Parameter(torch.ones(8, dtype=torch.int32), requires_grad=False)",
                          "x = x * self.a"),
    "twice in use": ("self.a = nn.Linear(8, 8)\nself.b = self.a", "x = self.b(self.a(x).relu())"),
    "tied": ("self.a = nn.Linear(8, 8)\nself.b = nn.Linear(8, 8)\nself.b.weight = self.a.weight",
             "x = self.b(self.a(x))"),
    "lists of parameters": ("self.a = nn.ParameterList([torch.ones(8), torch.zeros(8)])\nself.b = nn.ParameterDict({'bias': torch.zeros(8)})",
                            "x = x * self.a[0] + self.a[1] + self.b['bias']"),
    "of another dtype": ("self.a = nn.Parameter(torch.ones(8, 8, dtype=torch.float64))", "x = x @ self.a"),
    "of another dtype, by a layer": ("self.a = nn.Linear(8, 8).double()", "x = self.a(x)"),
    "convolution of another dtype": ("self.a = nn.Conv1d(2, 2, 1).bfloat16()", "x = self.a(x.view(-1, 2, 4)).flatten(1)"),
    "not registered": ("self.a = [nn.Linear(8, 8)]", "x = self.a[0](x)"),
    "tensor as attribute": ("self.a = torch.ones(8)", "x = x * self.a"),
    "tensor of numpy": ("import numpy as np\nself.register_buffer('a', torch.from_numpy(np.ones(8, 'float32')))",
                        "x = x * self.a"),
    "none among buffers": ("self.register_buffer('a', None)\nself.register_parameter('b', None)", "x = x.relu()"),
    "double parameter": ("self.a = nn.Parameter(torch.ones(8, dtype=torch.float64))", "x = (x * self.a).float()"),
    "half parameter": ("self.a = nn.Linear(8, 8, dtype=torch.bfloat16)", "x = self.a(x.bfloat16()).float()"),
    "eighth": ("self.register_buffer('a', torch.ones(8).to(torch.float8_e4m3fn))", "x = x * self.a.float()"),
    "values in the constructor": ("r = [v.item() for v in torch.linspace(0, 0.1, 3)]\nself.a = nn.Dropout(r[2])",
                                  "x = self.a(x)"),
    "odd names": ("self.add_module('a-b ü', nn.Linear(8, 8))\nself.register_buffer('in', torch.zeros(1))",
                  "x = getattr(self, 'a-b ü')(x)"),
    "names of the towers' parts": ("self.norm = nn.LayerNorm(8)\nself.pooler = nn.Linear(8, 8)",
                                   "x = self.pooler(self.norm(x))"),
    "a part named head": ("self.head = nn.Linear(8, 8)", "x = self.head(x)"),
    "strided parameter": ("self.a = nn.Parameter(torch.randn(8, 8).t() / 8)", "x = x @ self.a"),
    "expanded parameter": ("self.a = nn.Parameter(torch.ones(1).expand(8))", "x = x * self.a"),
    "view as buffer": ("self.a = nn.Parameter(torch.ones(8))\nself.register_buffer('b', self.a.detach()[:4])",
                       "x = x * self.a + self.b.mean()"),
    "parameter in a subclass": ("self.a = Mine(torch.ones(8))", "x = x * self.a"),
    # buffers and state
    "counter": ("self.register_buffer('a', torch.zeros((), dtype=torch.int64))", "self.a += 1"),
    "average": ("self.register_buffer('a', torch.zeros(8))",
                "if self.training:\n    self.a.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)\nx = x - self.a"),
    "buffer put anew": ("self.register_buffer('a', torch.zeros(8))",
                        "self.a = 0.9 * self.a + 0.1 * x.detach().mean(0)\nx = x - self.a"),
    "buffer that grows": ("self.register_buffer('a', torch.zeros(0, 8))",
                          "self.a = torch.cat([self.a, x.detach()])\nx = x - self.a.mean(0)"),
    "buffer with a graph": ("self.register_buffer('a', torch.zeros(8))", "self.a = 0.5 * self.a + x.mean(0)\nx = x + self.a"),
    "state without a graph": ("self.a = None", "h = 0 if self.a is None else self.a\nx = x + h\nself.a = x.detach().mean(0)"),
    "state with a graph": ("self.a = None", "h = 0 if self.a is None else self.a\nx = x + h\nself.a = x.mean(0).tanh()"),
    "queue": ("self.register_buffer('a', torch.zeros(16, 8))\nself.b = 0",
              "self.a[self.b : self.b + 1] = x.detach()[:1]\nself.b = (self.b + 1) % 16\nx = x + (x @ self.a.T) @ self.a"),
    "buffer of truth": ("self.register_buffer('a', torch.ones(8, dtype=torch.bool))", "x = x * self.a"),
    # in place and views
    "relu in place": ("self.a = nn.ReLU(inplace=True)", "x = self.a(x * 1)"),
    "view in place": ("", "y = x.clone()\ny[:, :4].add_(1)\ny.view(-1, 2, 4)[:, 0].mul_(2)\nx = y"),
    "transposed in place": ("", "y = x.clone()\ny.t().mul_(2)\nx = y.contiguous()"),
    "chunk in place": ("", "a, b = x.clone().chunk(2, 1)\na.add_(1)\nx = torch.cat([a, b], 1)"),
    "after use, in place": ("", "y = x.sigmoid()\nz = y * y\ny.add_(1)\nx = z"),
    "exponential, in place": ("", "y = x.exp()\nx = y.clamp_(max=9)"),
    "input in place": ("", "x.add_(1)"),
    "parameter in place": ("self.a = nn.Parameter(torch.ones(8))", "self.a.mul_(0.9)\nx = x * self.a"),
    "parameter's data": ("self.a = nn.Parameter(torch.ones(8))", "self.a.data.clamp_(0.5, 1.5)\nx = x * self.a"),
    "parameter without gradients": ("self.a = nn.Parameter(torch.ones(8))",
                                    "with torch.no_grad():\n    self.a.clamp_(0.5, 1.5)\nx = x * self.a"),
    "as strided": ("", "x = x.as_strided((len(x), 8), (8, 1)) + x.unfold(1, 2, 1).mean(-1).repeat(1, 2)[:, :8]"),
    "storage resized": ("", "y = x.clone()\ny.resize_(len(x), 8)\nx = y"),
    "set data": ("", "y = x.clone()\ny.data = x.data\nx = x + y * 0"),
    "expanded": ("", "x = x + x.mean(1, keepdim=True).expand_as(x)"),
    "view of a pair": ("self.a = nn.Linear(16, 16)", "x = self.a(x.view(-1, 16)).view(-1, 8)"),
    # hooks, functions, contexts
    "forward hook": ("self.a = nn.Linear(8, 8)\nself.a.register_forward_hook(lambda m, i, o: o * 2)", "x = self.a(x)"),
    "hook before": ("self.a = nn.Linear(8, 8)\nself.a.register_forward_pre_hook(lambda m, i: (i[0] + 1,))", "x = self.a(x)"),
    "backward hook": ("self.a = nn.Linear(8, 8)\nself.a.register_full_backward_hook(lambda m, i, o: (i[0] * 2,))",
                      "x = self.a(x)"),
    "bad backward hook": ("self.a = nn.Linear(8, 8)\nself.a.register_full_backward_hook(lambda m, i, o: (i[0].item(),))",
                          "x = self.a(x)"),
    "hook of a tensor": ("", "y = x * 1\nif y.requires_grad:\n    y.register_hook(lambda g: g.clamp(-1, 1))\nx = y"),
    "hook that reads": ("", "y = x * 1\nif y.requires_grad:\n    y.register_hook(lambda g: print(float(g.norm())))\nx = y"),
    "hook of a parameter": ("self.a = nn.Parameter(torch.ones(8))\nself.a.register_hook(lambda g: g * 0.5)", "x = x * self.a"),
    "gradient of a parameter": ("self.a = nn.Parameter(torch.ones(8))",
                                "x = x * self.a if self.a.grad is None else x * self.a + self.a.grad * 0"),
    "function of its own": ("", "x = Double.apply(x)"),
    "function in numpy": ("", "x = ThroughNumpy.apply(x)"),
    "function with a wrong gradient": ("", "x = WrongGradient.apply(x)"),
    "checkpointed": ("self.a = nn.Linear(8, 8)",
                     "x = torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=False)"),
    "checkpointed again": ("self.a = nn.Linear(8, 8)",
                           "x = torch.utils.checkpoint.checkpoint(self.a, x, use_reentrant=True)"),
    "detached": ("self.a = nn.Linear(8, 8)", "x = x + self.a(x.detach())"),
    "nothing to train before": ("", "x = x.detach()"),
    "no gradients": ("self.a = nn.Linear(8, 8)", "with torch.no_grad():\n    y = self.a(x)\nx = x + y"),
    "inference mode": ("self.a = nn.Linear(8, 8)", "with torch.inference_mode():\n    y = self.a(x)\nx = x + y"),
    "autocast": ("self.a = nn.Linear(8, 8)", "with torch.autocast('cpu', torch.bfloat16):\n    x = self.a(x)\nx = x.float()"),
    "in float64": ("", "x = (x.double() @ x.double().T @ x.double() / 99).float()"),
    "gradient in forward": ("self.a = nn.Linear(8, 8)",
                            "with torch.enable_grad():\n    y = x.detach().requires_grad_()\n"
                            "    g = torch.autograd.grad(self.a(y).tanh().sum(), y, create_graph=True)[0]\nx = x + g"),
    "functional": ("self.a = nn.Linear(8, 8)",
                   "x = torch.func.functional_call(self.a, {'weight': self.a.weight * 2}, (x,))"),
    "vmap": ("self.a = nn.Linear(8, 8)", "x = torch.func.vmap(lambda row: self.a(row).tanh())(x)"),
    "jacobian": ("", "x = torch.func.vmap(torch.func.jacrev(torch.tanh))(x).sum(1)"),
    "scripted function": ("", "x = scripted(x)"),
    "scripted module": ("self.a = torch.jit.script(nn.Linear(8, 8))", "x = self.a(x)"),
    "traced module": ("self.a = torch.jit.trace(nn.Linear(8, 8), torch.zeros(2, 8))", "x = self.a(x)"),
    "compiled module": ("self.a = torch.compile(nn.Linear(8, 8))", "x = self.a(x)"),
    "compiled in place": ("self.a = nn.Linear(8, 8)\nself.a.compile()", "x = self.a(x)"),
    "compiled function": ("", "x = torch.compile(torch.tanh)(x)"),
    "data parallel": ("self.a = nn.DataParallel(nn.Linear(8, 8))", "x = self.a(x)"),
    "deep copy": ("import copy\nself.a = nn.Linear(8, 8)\nself.b = copy.deepcopy(self.a)", "x = self.b(self.a(x))"),
    "moved": ("self.a = nn.Linear(8, 8)", "x = self.a.to(x.device)(x.cpu())"),
    "default dtype": ("", "x = x * torch.tensor(2.0) + torch.ones(8)"),
    "given type": ("", "x = x + torch.zeros(8).type_as(x) + x.new_ones(8)"),
    "prints": ("", "print('\\x1b[31m', tuple(x.shape))"),
    "warns": ("", "import warnings\nwarnings.warn('odd', stacklevel=1)"),
    "raises": ("", "raise RuntimeError('never\\nmind \\x1b[31m')"),
    "raises in the constructor": ("raise ValueError('no\\nway')", ""),
    "ends": ("", "raise SystemExit(3)"),
    "stops": ("", "raise StopIteration"),
    "recurses": ("", "x = self.forward(x)"),
    "asks the batch": ("", "assert len(x) in (2, 4, 8, 16), len(x)"),
    "asks for more than one": ("", "if self.training and len(x) < 2:\n    raise ValueError('a batch of one')"),
    "asks for gradients": ("", "assert x.requires_grad or not self.training"),
    "very large": ("self.a = nn.Parameter(torch.zeros(2**34, 2**30))", "x = x + self.a[0, :8]"),
    "pointer": ("", "assert x.data_ptr()"),
    "frees its input": ("", "y = x * 2\ndel x\nx = y"),
    "many operators": ("", "for _ in range(60):\n    x = x * 0.99"),
    "threads": ("", "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"
                    "    x = pool.submit(torch.tanh, x).result()"),
}  # fmt: skip

HARD = frozenset((
    "batch norm, cumulative", "int8 products", "complex parameter", "complex buffer", "complex linear",
    "sparse buffer", "sparse by conversion", "rows of a matrix", "sparse parameter", "sparse in forward",
    "sparse gradient", "sparse gather", "nested tensor", "distances", "codebook", "histogram", "mask as index",
    "nonzero", "item", "if on a value", "unique", "numpy", "as list", "isnan", "torch._assert", "routed experts",
    "distribution", "orthogonal", "orthogonal by products", "lazy", "lazy statistics", "made in forward",
    "not registered", "tensor as attribute", "eighth", "values in the constructor", "chunk in place",
    "after use, in place", "exponential, in place", "parameter in place", "storage resized", "bad backward hook",
    "function in numpy", "function with a wrong gradient", "inference mode", "scripted module", "traced module",
    "moved", "raises", "raises in the constructor", "ends", "stops", "recurses", "asks the batch", "very large",
    "pointer", "expanded parameter", "buffer with a graph", "state with a graph", "hook that reads",
    "of another dtype", "of another dtype, by a layer", "convolution of another dtype",
))  # fmt: skip
"""Parts that are refused by themselves, and so hide what others show: few draws have one."""

ENDS: dict[str, str] = {
    "as it is": "return x",
    "tokens": "return x.view(-1, 2, 4).repeat(1, 1, 2)",
    "a tuple": "return x, x.mean()",
    "a list": "return [x]",
    "a mapping": "return {'features': x}",
    "nothing": "pass",
    "a scalar": "return x.mean()",
    "too wide": "return torch.cat([x, x], 1)",
    "without gradients": "return x.detach()",
    "integers": "return x.argmax(1, keepdim=True).repeat(1, 8)",
    "float64": "return x.double()",
    "complex": "return x.to(torch.complex64)",
    "an output": "from collections import namedtuple\nreturn namedtuple('Out', 'last')(x)",
    "a view": "return x.t().contiguous().t()",
    "a parameter alone": "return self.stem.bias.expand(len(x), 8)",
}

HEAD = """
import edgefl
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F


class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).transpose(-1, -2)


class Mine(nn.Parameter):
    pass


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.saved_tensors[0] * 0


class ThroughNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(g.numpy() * 2)


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g[:, :4]


def plain(x):
    return torch.relu(x) * 2


"""
SCRIPTED = "scripted = torch.jit.script(plain)\n\n\n"

STEMS = {
    "image": (
        "channels: int, size: int",
        "self.stem = nn.Linear(channels * size * size, 8)",
        "self.stem(image.flatten(1))",
    ),
    "text": ("vocabulary: int", "self.stem = nn.Embedding(vocabulary, 8)", "self.stem(text).mean(1)"),
}
"""Of a modality: arguments, constructor and first features."""


def _indented(lines: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in lines.splitlines())


@st.composite
def modules(draw: st.DrawFn) -> Case:
    """A plug-in's tower of a stem, one to three parts, blocks of parts where a schedule may cut, and an end."""
    modality = draw(st.sampled_from(("image", "image", "text")))
    arguments, stem, first = STEMS[modality]
    soft = st.sampled_from(sorted(PARTS.keys() - HARD))
    names = draw(st.lists(soft, min_size=1, max_size=3, unique=True))
    if draw(st.integers(0, 4)) == 0:
        names[-1] = draw(st.sampled_from(sorted(HARD)))
    cut = draw(
        st.sampled_from(("", "", "", "blocks", "blocks", "blocks", "compiled", "compiled", "shared", "scripted"))
    )
    written = draw(st.sampled_from(("class", "class", "class", "build", "compiled build")))
    end = draw(st.sampled_from(("as it is",) * 5 * len(ENDS) + tuple(ENDS)))
    inside = draw(soft) if cut else "linear"
    schedule = draw(st.sampled_from(("end-to-end", "layerwise", "progressive", "elastic") if cut else ("end-to-end",)))
    training = {
        "batch": draw(st.sampled_from((4, 8))),
        "optimizer": draw(st.sampled_from(("adamw", "adamw", "sgd", "mezo"))),
        **draw(st.sampled_from(({}, {}, {}, {}, {"precision": "bfloat16"}, {"accumulation": 2}, {"clip": 1.0},
                                {"checkpointing": True}, {"precision": "float64"}, {"measure": "all"}))),
    }  # fmt: skip
    text = HEAD + SCRIPTED * ("scripted function" in (*names, inside))
    for number, name in enumerate(names):
        text += _module(f"Part{number}", *PARTS[name])
    text += _module("Block", *PARTS[inside])
    made = {"": "", "blocks": "self.layers = nn.ModuleList(Block() for _ in range(2))",
            "shared": "block = Block()\nself.layers = nn.ModuleList([block, block])",
            "compiled": "self.layers = nn.ModuleList(torch.compile(Block()) for _ in range(2))",
            "scripted": "self.layers = nn.ModuleList(torch.jit.script(Block()) for _ in range(2))"}[cut]  # fmt: skip
    if written != "class":
        made = made.replace("range(2)", "range(deep)").replace("[block, block]", "[block] * deep")
    parts = "".join(f"self.part{number} = Part{number}()\n" for number in range(len(names)))
    forward = f"x = {first}\n" + "for layer in self.layers:\n    x = layer(x)\n" * bool(cut)
    forward += "".join(f"x = self.part{number}(x)\n" for number in range(len(names)))
    forward += "return x[:, None]" if written != "class" and end == "as it is" else ENDS[end]
    held = "layers" if written == "class" else "blocks"
    body = f"super().__init__()\nself.width = 8\n{stem}\n{made}\n{parts}".replace("layers", held)
    forward = forward.replace("layers", held)
    if written == "class":
        text += '@edgefl.register("tower", "odd")\nclass Odd(nn.Module):\n'
        text += '    blocks = "layers"\n\n' * bool(cut)
    else:
        text += "class Odd(nn.Module):\n"
        arguments += ", deep: int = 2"
    text += f"    def __init__(self, {arguments}):\n{_indented(body, 8)}\n"
    text += f"    def forward(self, {modality}):\n{_indented(forward, 8)}\n"
    if written != "class":
        text += _BUILT.format(
            call="torch.compile({})" if written == "compiled build" else "{}",
        ).format("Odd(" + ("d['channels'], d['size']" if modality == "image" else "d['vocabulary']") + ", d['depth'])")
        text = text.replace("tokens_here", "tokens: int = 6" if modality == "text" else "patch: int = 1")
    scenario = {
        "edgefl": 1, "name": "odd", "seed": draw(st.integers(1, 3)),
        "data": {"source": "glyphs", "clients": {modality: 2}, "samples": 16, "size": 16, "validation": 20, "test": 20},
        "model": {modality: {"tower": "odd"}},
        "method": draw(st.sampled_from(("fedavg", "fedavg", "fedprox", "scaffold", "ditto"))),
        "schedule": {"name": schedule, "rounds": 2 if schedule in ("layerwise", "progressive") else 1},
        "training": training, "round": {"cohort": 2}, "executor": {"name": "inline", "device": "cpu"},
        "aggregation": draw(st.sampled_from(("mean", "mean", "median", "krum"))),
        "payload": {"up": draw(st.sampled_from(("float32", "float32", "float16", "int8")))},
    }  # fmt: skip
    if scenario["method"] == "scaffold":
        training["optimizer"] = "sgd"
    if training["optimizer"] == "mezo":
        scenario["method"], scenario["training"] = "mezo", {"batch": training["batch"], "optimizer": "mezo"}
    return Case(
        "modules",
        {"tower.py": text.encode(), "scenario.yaml": yaml.safe_dump(scenario, sort_keys=False).encode()},
        ("tower.py", "scenario.yaml"),
    )


_BUILT = """

class Tower:
    from pydantic import BaseModel as Base, ConfigDict

    class Options(Base):
        tower: str = "odd"
        blocks: int = 2
        width: int = 8
        tokens_here

    @staticmethod
    def build(d, norm):
        return {call}


edgefl.register("tower", "odd")(Tower)
"""


def _module(name: str, constructor: str, forward: str) -> str:
    """A class of modules of these lines."""
    return (
        f"class {name}(nn.Module):\n    def __init__(self):\n        super().__init__()\n{_indented(constructor, 8)}\n"
        f"    def forward(self, x):\n{_indented(forward, 8)}        return x\n\n\n"
    )
