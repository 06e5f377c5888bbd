#include "tools/lab/experiments.h"

#include "core/policy.h"

namespace sluice {

namespace {

SchedulerConfig& policy(LabSetup& s) { return s.engine.scheduler; }

void use_preset(LabSetup& s, const char* name) { apply_preset(name, policy(s)).value(); }

void use_allocator(LabSetup& s, KvAllocator allocator) {
  policy(s).allocator = allocator;
  policy(s).prefix_cache = false;
}

void nothing(LabSetup&) {}

// A pool that holds a fraction of what the requests could use.
void scarce_pool(LabSetup& s, int blocks, int ctx) {
  s.engine.kv_blocks = blocks;
  s.engine.ctx = ctx;
  policy(s).prefix_cache = false;
}

constexpr auto kThroughput = Figure::requests_per_s;

const Experiment kExperiments[] = {
    {"kv-cache", "A4", "KV cache", "decoding reads one token and the cache (S2)",
     "4 requests at once, 64 in, 24 out", "--no-kv-cache", "(default)",
     "n p + n(n-1)/2 computed tokens become p + n - 1: 21 x fewer here", Figure::tokens_per_s,
     Figure::computed, 5, 40, [] { return equal_requests(4, 64, 24); },
     [](LabSetup& s) { policy(s).prefix_cache = false; }, [](LabSetup& s) { s.kv_cache = false; },
     nothing},
    {"batching", "A6", "batching", "one read of the weights serves many users (S0, S2)",
     "32 requests at once, 16 in, 48 out: decoding", "--max-seqs 1", "--max-seqs 16",
     "grows until arithmetic is the limit; a model in the caches gains less", Figure::tokens_per_s,
     Figure::itl_p50, 2, 16, [] { return equal_requests(32, 16, 48); }, nullptr,
     [](LabSetup& s) { policy(s).max_seqs = 1; }, [](LabSetup& s) { policy(s).max_seqs = 16; }},
    {"continuous", "B2", "continuous batching",
     "+100 % (S2), 8 x, 23 x with paging, 4 x is optimised kernels (S3)",
     "32 requests, 8 slots, one in eight of 200 tokens, the others of 8: high variance; off: all "
     "rows of a batch run to its longest",
     "--preset static --padded", "--preset orca",
     "3.5 x fewer steps and 4.5 x fewer tokens; in time between the two", kThroughput,
     Figure::steps, 2, 4.6, [] { return few_long_outputs(32, 16, 8, 200, 8); },
     [](LabSetup& s) {
       policy(s).max_seqs = 8;
       policy(s).prefix_cache = false;
     },
     [](LabSetup& s) {
       use_preset(s, "static");
       s.padded = true;
     },
     [](LabSetup& s) { use_preset(s, "orca"); }},
    {"continuous-ragged", "B2", "continuous batching, against static batches without padding",
     "(none: rows that ended are computed to the end of their batch, S1 and S2)",
     "the same 32 requests; off: rows that ended cost nothing, but their slots stay empty",
     "--preset static", "--preset orca",
     "3.5 x fewer steps; in time as much as a step of one row costs of a step of eight: all of it "
     "where weights are read from memory, little where they are in the caches",
     kThroughput, Figure::steps, 1.2, 3.6, [] { return few_long_outputs(32, 16, 8, 200, 8); },
     [](LabSetup& s) {
       policy(s).max_seqs = 8;
       policy(s).prefix_cache = false;
     },
     [](LabSetup& s) { use_preset(s, "static"); }, [](LabSetup& s) { use_preset(s, "orca"); }},
    {"chunked-prefill", "B6", "chunked prefill, mixed with decodes",
     "2.3 x throughput, -50 % latency (S1): two different experiments",
     "8 users decode 400 tokens each; a prompt of 1,500 tokens comes 12 times, every 1.25 times "
     "the "
     "time that it takes alone (open loop)",
     "--preset vllm --budget 2048", "--preset sarathi --chunk 32",
     "no throughput; p99 between tokens falls by prompt / chunk, first tokens come later",
     Figure::itl_p99, Figure::ttft_mean, 3, 100,
     [] { return prompts_into_decodes(8, 16, 400, 12, 1500, 1.25); },
     [](LabSetup& s) { policy(s).prefix_cache = false; },
     [](LabSetup& s) {
       use_preset(s, "vllm");
       policy(s).budget = 2048;
     },
     [](LabSetup& s) {
       use_preset(s, "sarathi");
       policy(s).chunk = 32;
     },
     false, 1500},
    {"mixed-steps", "H4", "prompts and decodes in one step",
     "decodes first: TTFT suffers; prompts first: ITL does (S1 4.2)",
     "48 requests by Poisson at 40/s, 64 in, 24 out", "--preset decode-first", "--preset sarathi",
     "decodes first is batching by request: first tokens wait for all who run", Figure::ttft_mean,
     Figure::itl_p99, 1.2, 50, [] { return poisson_arrivals(equal_requests(48, 64, 24), 40, 5); },
     nullptr, [](LabSetup& s) { use_preset(s, "decode-first"); },
     [](LabSetup& s) { use_preset(s, "sarathi"); }},
    {"paged", "E2", "paged KV", "2-4 x at equal latency (vLLM); waste below a block",
     "48 requests, 32 in, 48 out, in 64 blocks of 16 with --ctx 512: KV memory is short",
     "--kv-allocator reserve", "--kv-allocator paged",
     "concurrency grows by up to ctx / (prompt + output) = 6.4; time by what batching gains",
     kThroughput, Figure::concurrency, 1.3, 6.4, [] { return equal_requests(48, 32, 48); },
     [](LabSetup& s) { scarce_pool(s, 64, 512); },
     [](LabSetup& s) { use_allocator(s, KvAllocator::reserve); },
     [](LabSetup& s) { use_allocator(s, KvAllocator::paged); }},
    {"range", "E4", "contiguous ranges sized by prediction (VM allocator)", "+200 % QPS (S2)",
     "the same 48 requests and 64 blocks", "--kv-allocator reserve", "--kv-allocator range",
     "as paged, less what external fragmentation costs", kThroughput, Figure::concurrency, 1.3, 6.4,
     [] { return equal_requests(48, 32, 48); }, [](LabSetup& s) { scarce_pool(s, 64, 512); },
     [](LabSetup& s) { use_allocator(s, KvAllocator::reserve); },
     [](LabSetup& s) { use_allocator(s, KvAllocator::range); }},
    {"virtual", "E7", "memory mapped behind contiguous addresses (vAttention)",
     "+0 to 23 % over paged kernels (vAttention, A100)",
     "16 requests, 512 in, 64 out, memory to spare", "--kv-allocator paged",
     "--kv-allocator virtual", "nothing: reading a block table costs nothing on a CPU", kThroughput,
     Figure::itl_p50, 0.95, 1.05, [] { return equal_requests(16, 512, 64); },
     [](LabSetup& s) {
       s.engine.ctx = 1024;
       policy(s).max_seqs = 16;
       policy(s).prefix_cache = false;
     },
     [](LabSetup& s) { use_allocator(s, KvAllocator::paged); },
     [](LabSetup& s) { use_allocator(s, KvAllocator::virtual_); }},
    {"predicted-peak", "E6", "admission by predicted peak", "(LightLLM) preemptions to about 0",
     "32 requests, 16 in, 96 out, in 64 blocks", "--admission watermark",
     "--admission predicted-peak --predict-output oracle",
     "no token is computed twice: preempted requests compute their context again", Figure::computed,
     Figure::preemptions, 1.02, 3, [] { return equal_requests(32, 16, 96); },
     [](LabSetup& s) { scarce_pool(s, 64, 512); }, nothing,
     [](LabSetup& s) { policy(s).admission = Admission::predicted_peak; }},
    {"watermark", "B9", "watermark", "default 0.01 (wde)",
     "32 requests, 16 in, 96 out, in 64 blocks", "--watermark 0.01", "--watermark 0.2",
     "fewer preemptions, fewer requests at once", Figure::computed, Figure::preemptions, 0.97, 2,
     [] { return equal_requests(32, 16, 96); }, [](LabSetup& s) { scarce_pool(s, 64, 512); },
     [](LabSetup& s) { policy(s).watermark = 0.01f; },
     [](LabSetup& s) { policy(s).watermark = 0.2f; }},
    {"swap", "B10", "swap instead of recompute", "\"impossible\" (S2); 5 % over recompute (wde)",
     "16 requests, 256 in, 160 out, in 180 blocks: preempted contexts are long",
     "--preempt recompute", "--preempt swap",
     "moving a context beats computing it again; a few per cent of the whole run", kThroughput,
     Figure::computed, 0.97, 1.3, [] { return equal_requests(16, 256, 160); },
     [](LabSetup& s) { scarce_pool(s, 180, 512); }, nothing,
     [](LabSetup& s) { policy(s).preempt = Preempt::swap; }},
    {"longest-first", "B11", "longest output first", "40 and 65 s faster of about 600 (S3)",
     "192 requests at once, 16 slots, log-normal outputs (median 24, at most 240)", "--order fcfs",
     "--order longest-output",
     "-25 to -31 % steps: slots stay full to the end; nothing where lengths are alike",
     Figure::makespan, Figure::latency_mean, 1.02, 1.5,
     [] { return lognormal_outputs(192, 8, 24, 240, 3); },
     [](LabSetup& s) { policy(s).max_seqs = 16; }, nothing,
     [](LabSetup& s) { policy(s).order = Order::longest_output; }},
    {"multi-prefill", "B12", "several prompts per step",
     "35 ms per prompt alone, 13 ms in batches of 8 (S3's contest, 910B)",
     "96 prompts of 12 tokens, 2 out", "--prefill-batch 1", "(default)",
     "short prompts fill a step together; long ones fill it alone", kThroughput, Figure::steps, 1.5,
     10, [] { return equal_requests(96, 12, 2); },
     [](LabSetup& s) { policy(s).prefix_cache = false; },
     [](LabSetup& s) { policy(s).prefill_batch = 1; }, nothing},
    {"fill-wait", "B14", "no wait for a fuller batch", "batch_waiting_time: 0.0 (S3)",
     "40 requests by Poisson at 20/s, 32 in, 8 out: light load", "--fill-wait 0.05", "(default)",
     "the wait is added to first tokens and gains nothing", Figure::ttft_mean, Figure::steps, 2,
     100, [] { return poisson_arrivals(equal_requests(40, 32, 8), 20, 7); }, nullptr,
     [](LabSetup& s) { policy(s).fill_wait = std::chrono::milliseconds(50); }, nothing},
    {"simple-async", "C2", "simple asynchronous scheduling", "about sync, or slightly less (S0)",
     "96 requests, 64 in, 16 out, steps of 64 tokens", "--pipeline sync --budget 64",
     "--pipeline simple-async --budget 64", "nothing on a CPU: host time is 1 % of a step",
     kThroughput, Figure::itl_p50, 0.93, 1.07, [] { return equal_requests(96, 64, 16); },
     [](LabSetup& s) { policy(s).budget = 64; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::sync; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::simple_async; }},
    {"interleave", "C7", "two batches in flight", "latency doubles (S0); +4 to +31 % QPS",
     "the same 96 requests: time between tokens", "--pipeline sync --budget 64",
     "--pipeline interleave --budget 64",
     "2 / gain: doubles where nothing is gained, as on a CPU (0.5 of sync's figure)",
     Figure::itl_p50, kThroughput, 0.4, 0.7, [] { return equal_requests(96, 64, 16); },
     [](LabSetup& s) { policy(s).budget = 64; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::sync; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::interleave; }},
    {"overlap", "C8", "next step of the same requests planned ahead", "(none)",
     "the same 96 requests", "--pipeline sync --budget 64", "--pipeline overlap --budget 64",
     "hides the host's time without a second batch: latency stays", kThroughput, Figure::itl_p50,
     0.95, 1.2, [] { return equal_requests(96, 64, 16); },
     [](LabSetup& s) { policy(s).budget = 64; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::sync; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::overlap; }},
    {"prefix-cache", "E12", "prefix cache", "20.6 to 98.8 req/s at 100 % hits (wde)",
     "32 requests, 2 prefixes of 384 tokens and 16 of their own, 8 out", "--no-prefix-cache",
     "(default)", "prompts cost what is not shared: up to 10 x fewer tokens here", kThroughput,
     Figure::computed, 3, 12, [] { return shared_prefixes(32, 2, 384, 16, 8); },
     [](LabSetup& s) { policy(s).max_seqs = 8; },
     [](LabSetup& s) { policy(s).prefix_cache = false; }, nothing},
    {"kv-int8", "E10", "KV in int8, groups of 8", "+100 % requests (S2)",
     "48 requests, 32 in, 48 out, in 4 MB of KV", "--kv f16", "--kv int8:8",
     "1.6 x as many tokens in the same memory (1.25 bytes each), not 2", Figure::concurrency,
     kThroughput, 1.45, 1.7, [] { return equal_requests(48, 32, 48); },
     [](LabSetup& s) {
       s.engine.kv_bytes = uint64_t{4} << 20;
       s.engine.ctx = 256;
       policy(s).prefix_cache = false;
       policy(s).admission = Admission::reserve_max;
     },
     [](LabSetup& s) { s.engine.kv_type = KvType(DType::f16); },
     [](LabSetup& s) { s.engine.kv_type = KvType(DType::i8, 8); }},
    {"w8a8", "F4", "int8 weights and activations", "about +100 % (S2)",
     "16 requests, 256 in, 16 out: prompts, where arithmetic is the limit", "--format bf16",
     "--format bf16 --quantize w8a8",
     "up to the ratio of the int8 and bf16 peaks (2 with i8mm and BFMMLA) in the matmuls alone",
     kThroughput, Figure::itl_p50, 1.1, 2.5, [] { return equal_requests(16, 256, 16); },
     [](LabSetup& s) {
       s.engine.format = "bf16";
       policy(s).prefix_cache = false;
     },
     nothing, [](LabSetup& s) { s.engine.quantize = Quantize::w8a8; }},
    {"int4-one-user", "F6", "4-bit weights, one user", "not for servers (S2)",
     "one request, 16 in, 192 out: reading weights is the limit where they exceed the caches",
     "--format bf16 --quantize w8a8", "--format bf16 --quantize w4",
     "wins where memory is the limit; this model fits the caches", Figure::tokens_per_s,
     Figure::itl_p50, 0.7, 1.8, [] { return equal_requests(1, 16, 192); },
     [](LabSetup& s) { s.engine.format = "bf16"; },
     [](LabSetup& s) { s.engine.quantize = Quantize::w8a8; },
     [](LabSetup& s) { s.engine.quantize = Quantize::w4; }},
    {"int4-prompts", "F6", "4-bit weights, prompts", "INT8 beats INT4 on servers (S2)",
     "16 requests, 256 in, 4 out", "--format bf16 --quantize w8a8", "--format bf16 --quantize w4",
     "loses: unpacking repeats for every tile of rows", kThroughput, Figure::ttft_mean, 0.2, 0.95,
     [] { return equal_requests(16, 256, 4); },
     [](LabSetup& s) {
       s.engine.format = "bf16";
       policy(s).prefix_cache = false;
     },
     [](LabSetup& s) { s.engine.quantize = Quantize::w8a8; },
     [](LabSetup& s) { s.engine.quantize = Quantize::w4; }},
    {"fused-qkv", "A10", "q, k, v and gate, up as one matmul", "fewer launches (S3)",
     "one request, 16 in, 192 out: small matmuls", "--no-fuse", "(default)",
     "fewer barriers per layer; a few per cent for small models", Figure::tokens_per_s,
     Figure::itl_p50, 1, 1.3, [] { return equal_requests(1, 16, 192); }, nullptr,
     [](LabSetup& s) { s.engine.fuse = false; }, nothing},
    {"tiled-attention", "A9", "attention in tiles, no matrix of scores",
     "2-4 x, memory O(S) instead of O(S^2) (S2, S3)", "one prompt of 4,000 tokens, 2 out",
     "--attention naive", "(default)",
     "more than 2-4 x, as the naive loops are also not written for this CPU", Figure::ttft_mean,
     Figure::steps, 1.5, 20, [] { return equal_requests(1, 4000, 2); },
     [](LabSetup& s) { policy(s).prefix_cache = false; },
     [](LabSetup& s) { s.engine.attention = AttentionVia::naive; }, nothing},
    {"decode-attention", "F1", "K and V read once for the query heads that share them",
     "2 x over the prompt kernel (S2, GPU)",
     "4 requests, 3,000 in, 64 out: decoding with long contexts, three query heads per kv head",
     "--attention by-head", "(default)",
     "up to 3 x in the attention of a decode, which is a part of its step", Figure::itl_p50,
     kThroughput, 1.05, 3, [] { return equal_requests(4, 3000, 64); },
     [](LabSetup& s) { policy(s).prefix_cache = false; },
     [](LabSetup& s) { s.engine.attention = AttentionVia::by_head; }, nothing},
    {"pipelined-text", "G1", "detokenising beside the next step", "+5 to +10 % QPS (S2)",
     "64 requests at once, 16 in, 32 out", "--text inline", "--text pipelined",
     "nothing: a token takes a microsecond of a step's milliseconds", Figure::tokens_per_s,
     Figure::itl_p50, 0.95, 1.1, [] { return equal_requests(64, 16, 32); }, nullptr,
     [](LabSetup& s) { s.text = TextWork::inline_; },
     [](LabSetup& s) { s.text = TextWork::pipelined; }},
    {"block-size", "E2", "blocks of 16 against 128", "16 to 128 changes < 1 % (wde)",
     "16 requests, 128 in, 64 out, memory to spare", "--block-size 128", "--block-size 16",
     "indirection costs nothing; small blocks waste less", kThroughput, Figure::itl_p50, 0.95, 1.05,
     [] { return equal_requests(16, 128, 64); }, nullptr,
     [](LabSetup& s) { policy(s).block_size = 128; }, nothing},
    {"metrics", "D3", "no times recorded", "record_metrics is a switch (wde)",
     "32 requests, 16 in, 64 out, steps of 16 decodes", "(default)", "--no-record-metrics",
     "nothing: six clock reads of a step; so a server always measures", Figure::tokens_per_s,
     Figure::steps, 0.97, 1.03, [] { return equal_requests(32, 16, 64); },
     [](LabSetup& s) { policy(s).max_seqs = 16; }, nothing,
     [](LabSetup& s) { s.engine.record_metrics = false; }},
    {"prefill-delay", "B13", "new requests wait for free slots", "k = slots / 64 was best (S3)",
     "96 requests, 8 slots, 32 in, 4-64 out", "(default)", "--prefill-delay 4",
     "subsumed by mixed steps: nothing to gain", kThroughput, Figure::ttft_mean, 0.7, 1.05,
     [] { return lognormal_outputs(96, 32, 16, 64, 4); },
     [](LabSetup& s) { policy(s).max_seqs = 8; }, nothing,
     [](LabSetup& s) { policy(s).prefill_delay = 4; }, true},
    {"double-buffer", "C4", "a third batch queued", "about interleave, never better (S0)",
     "96 requests, 64 in, 16 out, steps of 64 tokens", "--pipeline interleave --budget 64",
     "--pipeline double-buffer --budget 64", "nothing", kThroughput, Figure::itl_p50, 0.93, 1.07,
     [] { return equal_requests(96, 64, 16); }, [](LabSetup& s) { policy(s).budget = 64; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::interleave; },
     [](LabSetup& s) { policy(s).pipeline = Pipeline::double_buffer; }, true},
    {"chunk-cost", "B6", "one prompt in chunks of 64", "+15 % at 2k, chunk 512 (Yi-34B)",
     "4 prompts of 2,000 tokens, one after another", "--budget 2048", "--budget 64",
     "costs: earlier K and V are read again by every chunk, and matmuls are smaller",
     Figure::ttft_mean, Figure::steps, 0.6, 1, [] { return equal_requests(4, 2000, 2); },
     [](LabSetup& s) {
       policy(s).max_seqs = 1;
       policy(s).prefix_cache = false;
     },
     [](LabSetup& s) { policy(s).budget = 2048; }, [](LabSetup& s) { policy(s).budget = 64; },
     true},
    {"fast-top-p", "G2", "top-p without a full sort", "+10 to +20 % QPS (S2)",
     "32 requests at once, 16 in, 48 out, temperature 1, top-p 0.9: random weights, so rows are "
     "flat",
     "--full-sort", "(default)",
     "what sorting the vocabulary costs of a step: much for a small model with a large vocabulary",
     Figure::tokens_per_s, Figure::itl_p50, 1.1, 20, [] { return equal_requests(32, 16, 48); },
     [](LabSetup& s) { s.temperature = 1, s.top_p = 0.9f; },
     [](LabSetup& s) { s.engine.full_sort = true; }, nothing},
    {"warm-up", "G4", "warm-up", "first call about 30 s on Ascend (S3)",
     "one request, 32 in, 4 out, the first of its engine", "serve --no-warm-up", "(default)",
     "the first request pays for untouched memory; on a GPU also for graphs", Figure::ttft_mean,
     Figure::latency_mean, 1, 30, [] { return equal_requests(1, 32, 4); }, nullptr,
     [](LabSetup& s) { s.warm = false; }, nothing},
};

const Rung kRungs[] = {
    {"naive: one request, no KV cache", "A1",
     [](LabSetup& s) {
       s.kv_cache = false;
       s.engine.format = "bf16";
       s.engine.fuse = false;
       policy(s).max_seqs = 1;
       policy(s).pipeline = Pipeline::sync;
       use_preset(s, "static");
     }},
    {"+ KV cache", "A4",
     [](LabSetup& s) {
       s.kv_cache = true;
       s.engine.kv_blocks = 96;
       s.engine.ctx = 512;
       use_allocator(s, KvAllocator::reserve);
     }},
    {"+ static batches of up to 16", "B1", [](LabSetup& s) { policy(s).max_seqs = 16; }},
    {"+ continuous batching", "B2", [](LabSetup& s) { use_preset(s, "orca"); }},
    {"+ paged KV", "E2",
     [](LabSetup& s) {
       policy(s).allocator = KvAllocator::paged;
       policy(s).admission = Admission::watermark;
     }},
    {"+ chunked prefill", "B6", [](LabSetup& s) { use_preset(s, "sarathi"); }},
    {"+ longest output first", "B11", [](LabSetup& s) { policy(s).order = Order::longest_output; }},
    {"+ fused matmuls", "A10", [](LabSetup& s) { s.engine.fuse = true; }},
    {"+ overlap", "C8", [](LabSetup& s) { policy(s).pipeline = Pipeline::overlap; }},
    {"+ int8 weights and activations", "F4",
     [](LabSetup& s) { s.engine.quantize = Quantize::w8a8; }},
    {"+ prefix cache", "E12", [](LabSetup& s) { policy(s).prefix_cache = true; }},
};

}  // namespace

std::span<const Experiment> experiments() { return kExperiments; }
std::span<const Rung> waterfall_rungs() { return kRungs; }

LabWorkload waterfall_workload() {
  LabWorkload w = lognormal_outputs(24, 80, 16, 96, 11);
  for (size_t i = 0; i < w.size(); ++i) {
    w[i].prefix = 64;
    w[i].group = static_cast<int>(i % 2);
  }
  return w;
}

const char* verdict(double gain, double least, double most) {
  constexpr double kNoise = 0.03;
  if (gain > most) return "more than expected";
  if (gain >= least) return "as expected";
  if (least <= 1) return "worse than expected";
  if (gain > 1 + kNoise) return "less than expected";
  return gain >= 1 - kNoise ? "no effect" : "contrary";
}

}  // namespace sluice
