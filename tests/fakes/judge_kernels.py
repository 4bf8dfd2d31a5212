"""Kernels that cheat or misbehave, and honest ones, for the task ``y = x * w + 1``; each with the verdict it must get."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ytk_core.archspec import host_arch_specs
from ytk_core.dtypes import DType
from ytk_core.formats.kernel_bundle import KernelBundle, render_bundle
from ytk_core.formats.plugin_meta import (
    SCHEMA_VERSION,
    DeploymentTarget,
    Extent,
    Generator,
    InputDecl,
    Launcher,
    OutputDecl,
    PluginMeta,
    TensorType,
    Tolerance,
    Variant,
)
from ytk_gaia.evaluator.verdicts import Verdict
from ytk_gaia.task_format import Sample, SampleLimits, Task, TaskSpec, TaskTensor

ROWS, COLUMNS = 37, 53
DIGEST = "blake3:" + "0" * 64
ARCH = host_arch_specs("ov20264")[0]


# ---- a task: y = x * w + 1 -------------------------------------------------------------------------------------------


def make_task(timed=4, shape=(ROWS, COLUMNS)):
    rng = np.random.default_rng(5)
    samples, limits = [], []
    for k in range(timed + 2):
        x = rng.standard_normal(shape).astype(np.float32)
        w = rng.standard_normal(shape[1]).astype(np.float32)
        if k == 1:
            # Almost the sample before: who recognises inputs by a part of them is wrong here.
            x, w = samples[0].inputs[0].copy(), samples[0].inputs[1]
            x.reshape(-1)[-1] += 1
        y = x.astype(np.float64) * w.astype(np.float64) + 1
        samples.append(Sample((x, w), (y,)))
        name = f"random-{k}" if k >= 2 else f"structured-{k}"
        limits.append(SampleLimits(name=name, timed=k >= 2, atol=(2e-6,), rtol=(5e-7,)))
    spec = TaskSpec(
        region_digest=DIGEST,
        inputs=(
            TaskTensor(name="x", dtype=DType.FLOAT32, shape=shape),
            TaskTensor(name="w", dtype=DType.FLOAT32, shape=shape[1:]),
        ),
        outputs=(TaskTensor(name="y", dtype=DType.FLOAT32, shape=shape),),
        samples=tuple(limits),
        expectation="float64",
        tolerance_source="by hand",
        rounds=2,
    )
    return Task(spec, tuple(samples))


def make_meta(**changes):
    meta = PluginMeta(
        schema_version=SCHEMA_VERSION,
        plugin_namespace="yasp",
        plugin_name="Scale",
        plugin_version="1",
        deployment_target=DeploymentTarget.CPU,
        inputs=[InputDecl(name="x", rank=2, dims=[ROWS, COLUMNS]), InputDecl(name="w", rank=1, dims=[COLUMNS])],
        outputs=[OutputDecl(name="y", rank=2, shape=["in0.d0", "in0.d1"])],
        variants=[
            Variant(
                id="float32",
                inputs=[TensorType(dtype=DType.FLOAT32)] * 2,
                outputs=[TensorType(dtype=DType.FLOAT32)],
            )
        ],
        launcher=Launcher(),
        tolerance=Tolerance(rtol=0.0, atol=1e-5, source="by hand"),
        generator=Generator(name="by hand", version="1", strategy="none"),
        region_digest=DIGEST,
    )
    return msgspec.structs.replace(meta, **changes)


# C headers only: the C++ ones cost a second of compiling each on a busy machine.
HEADER = """\
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <time.h>
#include <unistd.h>
"""
# What the contract excludes is refused, as the ABI asks of a launcher.
TYPES = """
  for (int k = 0; k < 3; ++k) {
    const ytk_tensor& t = k < 2 ? in[k] : out[0];
    if (t.dtype != YTK_FLOAT32 || t.format != YTK_LINEAR) return YTK_BAD_DTYPE;
    if (t.rank != (k == 1 ? 1 : 2)) return YTK_BAD_SHAPE;
  }
  if (out[0].dims[0] != in[0].dims[0] || out[0].dims[1] != in[0].dims[1]) return YTK_BAD_SHAPE;"""
CHECKS = f"""{TYPES}
  if (in[0].dims[0] != {ROWS} || in[0].dims[1] != {COLUMNS} || in[1].dims[0] != {COLUMNS}) return YTK_BAD_SHAPE;"""
ANY_SHAPE = f"""{TYPES}
  if (in[0].dims[0] < 0 || in[0].dims[1] < 0 || in[1].dims[0] != in[0].dims[1]) return YTK_BAD_SHAPE;"""
HONEST = "for (int64_t i = 0; i < n; ++i) y[i] = x[i] * w[i % columns] + 1.0f;"


def kernel(body, before="", header=HEADER, checks=CHECKS, **meta):
    source = f"""
{before}
extern "C" int ytk_launch(const ytk_context* ctx, const ytk_tensor* in, int nin, ytk_tensor* out, int nout) {{
  if (nin != 2 || nout != 1) return YTK_BAD_ARITY;{checks}
  (void)ctx;
  float* x = (float*)in[0].data;
  float* w = (float*)in[1].data;
  float* y = (float*)out[0].data;
  const int64_t rows = in[0].dims[0], columns = in[0].dims[1], n = rows * columns;
  (void)x; (void)w; (void)y; (void)n; (void)rows; (void)columns;
  {body}
  return YTK_OK;
}}
"""
    return render_bundle(KernelBundle(header=header, source=source, meta=make_meta(**meta)))


# Calls of clock_gettime from another object go through a table of addresses; who changes an entry changes no code.
# FUNCTION is what they call then.
PATCH_CLOCK = """
static int patch(struct dl_phdr_info* info, size_t, void*) {
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    if (info->dlpi_phdr[k].p_type != PT_DYNAMIC) continue;
    const char* strings = nullptr; const ElfW(Sym)* symbols = nullptr; const ElfW(Rela)* tables[2] = {}; size_t sizes[2] = {};
    for (auto* d = (ElfW(Dyn)*)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr); d->d_tag; ++d) {
      if (d->d_tag == DT_STRTAB) strings = (const char*)d->d_un.d_ptr;
      if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym)*)d->d_un.d_ptr;
      if (d->d_tag == DT_JMPREL) tables[0] = (const ElfW(Rela)*)d->d_un.d_ptr;
      if (d->d_tag == DT_PLTRELSZ) sizes[0] = d->d_un.d_val;
      if (d->d_tag == DT_RELA) tables[1] = (const ElfW(Rela)*)d->d_un.d_ptr;
      if (d->d_tag == DT_RELASZ) sizes[1] = d->d_un.d_val;
    }
    if (!strings || !symbols || strstr(info->dlpi_name, "kernel.so") || strstr(info->dlpi_name, "vdso")) continue;
    for (int t = 0; t < 2; ++t)
      for (size_t r = 0; tables[t] && r < sizes[t] / sizeof(ElfW(Rela)); ++r) {
        if (strcmp(strings + symbols[ELF64_R_SYM(tables[t][r].r_info)].st_name, "clock_gettime")) continue;
        void** slot = (void**)(info->dlpi_addr + tables[t][r].r_offset);
        mprotect((void*)((uintptr_t)slot & ~4095ul), 4096, PROT_READ | PROT_WRITE);
        *slot = (void*)FUNCTION;
      }
  }
  return 0;
}
static void install() { static bool done = false; if (!done) dl_iterate_phdr(patch, nullptr); done = true; }
"""
FALSE_CLOCK = """
static long now = 0;
static int false_clock(clockid_t, struct timespec* t) { now += STEP; t->tv_sec = 0; t->tv_nsec = now; return 0; }
static void work() { for (volatile int i = 0; i < 4000000; ++i) {} }
""" + PATCH_CLOCK.replace("FUNCTION", "false_clock")


@dataclass
class Case:
    text: str
    verdict: Verdict
    words: tuple[str, ...] = field(default=())


def cheats(secret, port):
    wrong, runtime, bounds = Verdict.WRONG_VALUE, Verdict.RUNTIME_ERROR, Verdict.OUT_OF_BOUNDS
    cases = {
        "writes_nothing": Case(kernel(""), wrong, ("output 0 (y)",)),
        "zeros": Case(kernel("memset(y, 0, n * 4);"), wrong, ("output 0 (y)",)),
        "cached_by_pointer": Case(
            kernel(f"static float* seen = nullptr; if (seen == y) return 0; seen = y; {HONEST}"),
            wrong,
            ("had not been written",),
        ),
        "returns_the_first_answer": Case(
            kernel(
                f"static float* first = nullptr; if (!first) {{ {HONEST} first = (float*)malloc(n * 4); memcpy(first, y, n * 4); }} "
                "memcpy(y, first, n * 4);"
            ),
            wrong,
            ("structured-1", "1 of 1961"),
        ),
        "first_calls_only": Case(
            kernel(f"static int calls = 0; if (++calls > 4) return 0; {HONEST}"),
            wrong,
            ("random-", "had not been written"),
        ),
        "cached_by_content": Case(
            kernel(
                "static float key[16], kept[1 << 16]; if (!memcmp(key, x, sizeof key)) { memcpy(y, kept, n * 4); return 0; }"
                f"{HONEST} memcpy(key, x, sizeof key); memcpy(kept, y, n * 4);"
            ),
            wrong,
            ("structured-1",),
        ),
        "detects_the_warm_up": Case(
            kernel(
                "static int calls = 0; static float kept[1 << 16];"
                f"if (++calls > 3) {{ memcpy(y, kept, n * 4); return 0; }} {HONEST} memcpy(kept, y, n * 4);"
            ),
            wrong,
            ("random-",),
        ),
        "works_without_being_called": Case(
            kernel(
                "static All all; static bool begun = false; all = {x, w, y, n, columns};"
                f"{HONEST} if (!begun) {{ begun = true; pthread_t id; pthread_create(&id, nullptr, run, &all); }}",
                "struct All { float *x, *w; volatile float* y; int64_t n, columns; };"
                "static void* run(void* p) { for (;;) { auto [x, w, y, n, columns] = *(All*)p;"
                "for (int64_t i = 0; i < n; ++i) y[i] = x[i] * w[i % columns] + 1.0f; } return nullptr; }",
            ),
            Verdict.NOT_USED,
            ("launcher had not been called",),
        ),
        "has_another_library": Case(
            kernel(
                f'static void* other = dlopen("libresolv.so.2", RTLD_NOW); if (!other) return YTK_UNSUPPORTED; {HONEST}'
            ),
            Verdict.NOT_USED,
            ("libresolv",),
        ),
        "hard_coded_shape": Case(
            kernel(HONEST, checks=""), Verdict.WRONG_SHAPE, ("input 0", f"declared as {ROWS}", "refuses")
        ),
        "later_thread": Case(
            kernel(
                "static Later later; later = {x, w, y, n, columns}; pthread_t id; pthread_create(&id, nullptr, run, &later);",
                "struct Later { float *x, *w, *y; int64_t n, columns; };"
                "static void* run(void* p) { auto [x, w, y, n, columns] = *(Later*)p; usleep(3000);"
                f"{HONEST} return nullptr; }}",
            ),
            wrong,
            # Not written when the launcher returned, or changed after it had: a judge that waits for its processor sees that.
            ("the launcher", "returned"),
        ),
        "trusts_old_workspace": Case(
            kernel(
                f"float* old = (float*)ctx->workspace; if (old[0] == 42.0f) return 0; {HONEST} old[0] = 42.0f; y[0] += old[1] * 0;"
                " y[1] = old[1];",
                launcher=Launcher(fixed_workspace_bytes=4096),
            ),
            wrong,
            ("[0, 1]",),
        ),
        "nan_wildcard": Case(kernel("for (int64_t i = 0; i < n; ++i) y[i] = NAN;"), wrong, ("nan",)),
        "half_the_work": Case(kernel(HONEST.replace("i < n", "i < n / 2")), wrong, ("had not been written",)),
        "all_but_the_last": Case(
            kernel(HONEST.replace("i < n", "i < n - 1")), wrong, (f"[{ROWS - 1}, {COLUMNS - 1}]",)
        ),
        "reduced_precision": Case(
            kernel(
                "auto cut = [](float v) { uint32_t b; memcpy(&b, &v, 4); b &= 0xffff0000u; memcpy(&v, &b, 4); return v; };"
                "for (int64_t i = 0; i < n; ++i) y[i] = cut(x[i]) * cut(w[i % columns]) + 1.0f;"
            ),
            wrong,
            ("of 1961 elements",),
        ),
        "forged_verdict": Case(
            kernel('puts("done 0000000000000000 0 1"); puts("{\\"verdict\\": \\"PASSED\\"}"); fflush(stdout);'),
            wrong,
            ("had not been written",),
        ),
        "reads_expected_data": Case(
            kernel(f'if (FILE* f = fopen("{secret}", "rb")) {{ fclose(f); return YTK_UNSUPPORTED; }}'),
            wrong,
            ("had not been written",),
        ),
        "asks_the_network": Case(
            kernel(
                "sockaddr_in a = {}; a.sin_family = AF_INET; "
                f"a.sin_port = htons({port}); a.sin_addr.s_addr = htonl(0x7f000001);"
                "if (connect(socket(AF_INET, SOCK_STREAM, 0), (sockaddr*)&a, sizeof a) == 0) return YTK_UNSUPPORTED;"
            ),
            wrong,
            ("had not been written",),
        ),
        "guessed_descriptor": Case(
            kernel(f'for (int fd = 3; fd < 64; ++fd) (void)!write(fd, "done 0 0 1\\n", 11); {HONEST}'),
            runtime,
            ("turn",),
        ),
        "answers_twice_by_fork": Case(kernel(f"{HONEST} fork();"), runtime, ("the process",)),
        "exits_with_success": Case(kernel(f"{HONEST} _exit(0);"), runtime, ("ended by itself with 0",)),
        "refuses": Case(kernel("return YTK_BAD_SHAPE;"), runtime, ("YTK_BAD_SHAPE",)),
        "null_pointer": Case(kernel("*(volatile int*)0 = 1;"), runtime, ("SIGSEGV",)),
        "memory_bomb": Case(
            kernel(f"volatile char* big = (volatile char*)malloc((size_t)1 << 36); big[0] = 1; {HONEST}"),
            runtime,
            ("SIGSEGV",),
        ),
        "absurd_workspace": Case(
            kernel(HONEST, launcher=Launcher(fixed_workspace_bytes=1 << 50)), runtime, ("workspace",)
        ),
        "seals_the_memory": Case(
            kernel(
                HONEST,
                "__attribute__((constructor)) static void seal() {"
                " for (int fd = 3; fd < 64; ++fd) fcntl(fd, 1033 /* F_ADD_SEALS */, 4 /* F_SEAL_GROW */); }",
            ),
            runtime,
            ("tampered",),
        ),
        "endless_loop": Case(kernel("for (volatile int i = 0;; ++i) {}"), Verdict.TIMEOUT, ("no answer within",)),
        "writes_one_after": Case(kernel(f"{HONEST} y[n] = 0;"), bounds, ("output 0",)),
        "writes_one_before": Case(kernel(f"{HONEST} y[-1] = 0;"), bounds, ("output 0",)),
        "writes_far_after": Case(kernel(f"{HONEST} y[n + 500] = 0;"), bounds, ("after output 0",)),
        "reads_far_after": Case(kernel(f"{HONEST} y[0] += (float)(x[n + 500] * 0);"), bounds, ("after input 0",)),
        "reads_one_after": Case(kernel(f"{HONEST} y[0] += x[n];"), wrong, ("[0, 0]",)),
        "mutates_its_input": Case(kernel(f"{HONEST} x[3] = 0;"), Verdict.MUTATED_INPUT, ("input 0",)),
        "mutates_and_restores": Case(
            kernel(f"float kept = w[0]; w[0] = 7; *(volatile float*)w = kept; {HONEST}"),
            Verdict.MUTATED_INPUT,
            ("input 1",),
        ),
        "unprotects_and_mutates": Case(
            kernel(f"mprotect((void*)((uintptr_t)x & ~4095ul), 4096, 3); {HONEST} x[3] = 0;"),
            Verdict.MUTATED_INPUT,
            ("not what it was",),
        ),
        "differs_between_calls": Case(
            kernel(
                f"{HONEST} timespec t; clock_gettime(CLOCK_MONOTONIC, &t); "
                "uint32_t b; memcpy(&b, &y[5], 4); b ^= (t.tv_nsec >> 4) & 1; memcpy(&y[5], &b, 4);"
                "memcpy(&b, &y[6], 4); b ^= (t.tv_nsec >> 5) & 1; memcpy(&y[6], &b, 4);"
                "memcpy(&b, &y[7], 4); b ^= (t.tv_nsec >> 6) & 1; memcpy(&y[7], &b, 4);"
            ),
            Verdict.NONDETERMINISTIC,
            ("two calls on the same input",),
        ),
        # One thread counts, the other one looks at the count without asking: what it sees is a matter of moments.
        "race": Case(
            kernel(
                f"{HONEST} shared = 0; stop = 0; pthread_t id; pthread_create(&id, nullptr, count, nullptr);"
                "while (shared < 1000) sched_yield(); const unsigned seen = shared; stop = 1; pthread_join(id, nullptr);"
                "for (int k = 0; k < 8; ++k) { uint32_t b; memcpy(&b, &y[5 + k], 4); b ^= (seen >> k) & 1; memcpy(&y[5 + k], &b, 4); }",
                "static volatile unsigned shared, stop;"
                "static void* count(void*) { while (!stop) shared = shared + 1; return nullptr; }",
            ),
            Verdict.NONDETERMINISTIC,
            ("two calls on the same input",),
        ),
        "promises_an_untested_range": Case(
            kernel(
                HONEST,
                checks=ANY_SHAPE,
                inputs=[
                    InputDecl(name="x", rank=2, dims=[None, COLUMNS]),
                    InputDecl(name="w", rank=1, dims=[COLUMNS]),
                ],
                extents=[Extent(input=0, axis=0, min=1, opt=ROWS, max=4096)],
            ),
            Verdict.WRONG_SHAPE,
            ("1 to 4096", "tested at"),
        ),
        "wrong_input_shape": Case(
            kernel(
                HONEST,
                inputs=[
                    InputDecl(name="x", rank=2, dims=[ROWS, COLUMNS - 1]),
                    InputDecl(name="w", rank=1, dims=[COLUMNS]),
                ],
            ),
            Verdict.WRONG_SHAPE,
            ("input 0",),
        ),
        "wrong_output_shape": Case(
            kernel(HONEST, outputs=[OutputDecl(name="y", rank=2, shape=["in0.d1", "in0.d0"])]),
            Verdict.WRONG_SHAPE,
            ("output 0",),
        ),
        "wrong_dtype": Case(
            kernel(
                HONEST,
                variants=[
                    Variant(
                        id="h", inputs=[TensorType(dtype=DType.FLOAT16)] * 2, outputs=[TensorType(dtype=DType.FLOAT16)]
                    )
                ],
            ),
            Verdict.WRONG_DTYPE,
            ("no variant",),
        ),
        "does_not_compile": Case(kernel("this is no C++;"), Verdict.COMPILE_ERROR, ("error",)),
        "forbidden_flag": Case(
            kernel(HONEST, compile_flags=["-O2"]).replace("-O2", "-ffast-math"), Verdict.COMPILE_ERROR, ("-ffast-math",)
        ),
        "no_bundle": Case("import os", Verdict.COMPILE_ERROR, ("bundle",)),
        "reads_host_files_by_include": Case(
            kernel(HONEST, f'#include "{secret}"\n'), Verdict.COMPILE_ERROR, ("No such file",)
        ),
    }
    if platform.machine() == "x86_64":
        stopped = FALSE_CLOCK.replace("STEP", "0")
        slow = FALSE_CLOCK.replace("STEP", "20000")
        cases["stops_the_clock"] = Case(
            kernel(f"install(); work(); {HONEST}", stopped), Verdict.IMPOSSIBLE_TIME, ("floor",)
        )
        cases["slows_the_clock"] = Case(
            kernel(f"install(); work(); {HONEST}", slow), Verdict.IMPOSSIBLE_TIME, ("judge's clock",)
        )
    return cases


HONEST_KERNELS = {
    "honest": kernel(HONEST),
    "honest_twin": kernel(HONEST, "// the same again"),
    "honest_slow": kernel(f"usleep(1500); {HONEST}"),
    "honest_threads": kernel(f"#pragma omp parallel for num_threads(ctx->threads)\n{HONEST}"),
    "honest_workspace": kernel(
        "if (ctx->workspace_bytes < (uint64_t)n * 4) return YTK_WORKSPACE_TOO_SMALL;"
        "float* tmp = (float*)ctx->workspace; for (int64_t i = 0; i < n; ++i) tmp[i] = x[i] * w[i % columns];"
        "for (int64_t i = 0; i < n; ++i) y[i] = tmp[i] + 1.0f;",
        launcher=Launcher(fixed_workspace_bytes=ROWS * COLUMNS * 4),
    ),
    "honest_talker": kernel(f'puts("hello"); fflush(stdout); {HONEST}'),
    "honest_any_shape": kernel(
        HONEST,
        checks=ANY_SHAPE,
        inputs=[InputDecl(name="x", rank=2, dims=[None, None]), InputDecl(name="w", rank=1, dims=[None])],
    ),
}
