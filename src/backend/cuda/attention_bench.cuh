// Times of the attention kernels, for attention_test --bench.
#pragma once

namespace sluice::cuda {

// Prints tables: decode as a share of the copy bandwidth, prefill in TFLOP/s.
int bench_attention(int num_sms);
int bench_cache_types(int num_sms, bool decodes);  // or prompts alone
int bench_common_prefixes(int num_sms);

}  // namespace sluice::cuda
