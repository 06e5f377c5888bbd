// Attention over what decode rows have in common: the bits of rows that each read all on their own,
// however the work is cut, also when groups change under a captured graph.
#include "backend/cuda/attention_prefix.cuh"
#include "backend/cuda/attention_step.cuh"

namespace sluice::cuda {
namespace {

__global__ void plan_kernel(PrefixPlan* plan,
                            const PrefixGroup* groups,
                            int num,
                            PrefixSizes sizes) {
  plan_prefixes(*plan, groups, num, sizes);
}
__global__ void places_kernel(int* begins, int num) {
  int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < num) begins[i] = span_begin(span_of(i));
}

// The groups of a step on the GPU, with memory for states.
class Prefixes {
 public:
  Prefixes(const Setup& s, int rows)
      : setup_(s), rows_(rows), members_(rows * 4), places_(rows * 4) {}

  // `blocks` thread blocks at a time, and room for so many floats of states at the most.
  void plan(const std::vector<Sharing>& groups, int num_sms, int64_t capacity = 0) {
    std::vector<PrefixGroup> list;
    std::vector<int32_t> members, places(rows_, -1);
    for (const Sharing& g : groups) {
      for (size_t i = 0; i < g.parts.size(); ++i)
        places[g.parts[i]] = prefix_place(static_cast<int>(list.size()), static_cast<int>(i));
      list.push_back(
          {static_cast<int>(members.size()), static_cast<int>(g.parts.size()), g.positions});
      members.insert(members.end(), g.parts.begin(), g.parts.end());
    }
    PrefixSizes sizes =
        prefix_sizes({setup_.heads, setup_.kv_heads, setup_.head_dim}, rows_, num_sms);
    if (capacity > 0) sizes.capacity = capacity;
    if (!states_) states_ = std::make_unique<Device>(prefix_bytes(sizes));
    check(cudaMemset(states_->as<uint8_t>(), 0xff, prefix_bytes(sizes)), "poison");
    members.resize(rows_);
    members_.put(members);
    places_.put(places);
    Device groups_on_gpu(list);
    plan_kernel<<<1, 1>>>(plan_.as<PrefixPlan>(), groups_on_gpu.as<PrefixGroup>(),
                          static_cast<int>(list.size()), sizes);
    check(cudaDeviceSynchronize(), "plan");
  }
  void add_to(AttentionArgs& a) const {
    a.prefixes = {plan_.as<PrefixPlan>(), members_.as<int32_t>(), places_.as<int32_t>()};
    a.prefix_states = states_->as<float>();
  }
  PrefixPlan planned() const {
    PrefixPlan p;
    std::vector<uint8_t> bytes = plan_.get();
    std::memcpy(&p, bytes.data(), sizeof(p));
    return p;
  }

 private:
  Setup setup_;
  int rows_;
  Device members_, places_;
  Device plan_{sizeof(PrefixPlan)};
  std::unique_ptr<Device> states_;
};

void fail(const Setup& s, const char* what, int number) {
  if (++g_failures < 60)
    std::printf("FAIL prefixes: %s: %s %d\n", s.describe().c_str(), what, number);
}

// Rows at these positions, of which these begin alike.
void check_groups(Setup setup,
                  const std::vector<int>& positions,
                  const std::vector<Sharing>& groups) {
  setup.deterministic = true;
  std::vector<Part> parts;
  for (int p : positions) parts.push_back({p, 1});
  const int rows = static_cast<int>(parts.size());
  Step step(setup, parts, true, groups);
  step.run_decode(rows);
  step.compare("decode of a prefix each", 0, rows);
  const std::vector<uint8_t> alone = step.output();

  Prefixes prefixes(setup, rows);
  auto run = [&](const char* what, int number) {
    ++g_checks;
    step.poison();
    AttentionArgs args = step.args();
    prefixes.add_to(args);
    attend_decode(args, rows, nullptr);
    args.deterministic = false;  // the same
    attend_decode(args, rows, nullptr);
    check(cudaDeviceSynchronize(), what);
    if (step.output() != alone) fail(setup, what, number);
  };
  for (int num_sms : {g_num_sms, 1, 3, 20}) {
    step.set_num_sms(num_sms);
    prefixes.plan(groups, num_sms);
    run("multiprocessors", num_sms);
  }
  step.set_num_sms(g_num_sms);
  // Room for two states of each row and no more: larger items.
  int64_t floats = 0;
  for (const Sharing& g : groups) floats += static_cast<int64_t>(g.parts.size());
  floats *= setup.kv_heads *
            prefix_state_floats(setup.heads / setup.kv_heads, setup.head_dim <= 64 ? 64 : 128);
  prefixes.plan(groups, g_num_sms, floats * 2);
  run("little room for states", 2);
  prefixes.plan({groups[0]}, g_num_sms);
  run("one of the groups", 1);
}

// Which groups there are may change between two runs of a captured graph.
void check_captured(Setup setup) {
  setup.deterministic = true;
  const std::vector<Sharing> groups = {{{0, 1, 2, 5}, 768}, {{3, 4}, 1280}};
  std::vector<Part> parts;
  for (int i = 0; i < 7; ++i) parts.push_back({1400 + 37 * i, 1});
  Step step(setup, parts, true, groups);
  step.run_decode(7);
  step.compare("decode of a prefix each", 0, 7);
  const std::vector<uint8_t> alone = step.output();
  Prefixes prefixes(setup, 7);
  prefixes.plan(groups, g_num_sms);
  AttentionArgs args = step.args();
  prefixes.add_to(args);
  attend_decode(args, 7, nullptr);  // attributes are set outside of the capture
  check(cudaDeviceSynchronize(), "decode");
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  attend_decode(args, 7, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  const std::vector<std::vector<Sharing>> some = {
      groups, {{{3, 4}, 1024}}, {{{0, 5}, 256}, {{1, 2}, 512}}, {{{5, 0, 1}, 768}}};
  for (size_t i = 0; i < some.size(); ++i) {
    ++g_checks;
    prefixes.plan(some[i], g_num_sms);
    step.poison();
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaStreamSynchronize(stream), "graph");
    if (step.output() != alone) fail(setup, "graph", static_cast<int>(i));
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// The host rounds to the same places.
void check_places() {
  constexpr int kNum = 300'000;
  Device begins(kNum * sizeof(int));
  places_kernel<<<(kNum + 255) / 256, 256>>>(begins.as<int>(), kNum);
  check(cudaDeviceSynchronize(), "places");
  std::vector<uint8_t> bytes = begins.get();
  const int* got = reinterpret_cast<const int*>(bytes.data());
  ++g_checks;
  for (int i = 0; i < kNum; ++i) {
    if (got[i] == whole_spans(i)) continue;
    ++g_failures;
    std::printf("FAIL places: %d is in the span from %d, on the host %d\n", i, got[i],
                whole_spans(i));
    return;
  }
}

std::vector<int> range(int first, int end) {
  std::vector<int> list(end - first);
  std::iota(list.begin(), list.end(), first);
  return list;
}

}  // namespace

void check_prefixes(bool small) {
  check_places();
  for (Types t : types({0, 1, 2, 3, 4, 5, 6, 7})) {
    for (int dim : small ? std::vector{128} : std::vector{64, 80, 128}) {
      if (!fits(t, dim)) continue;
      for (int group : small ? std::vector{7} : std::vector{1, 2, 4, 7, 8, 9, 20}) {
        Setup s = make(t, 2, group, dim);
        check_groups(s, {600, 530, 1024, 777, 300, 4}, {{{0, 1, 2}, 512}, {{3, 4}, 256}});
        if (small) continue;
        s.softcap = group == 4 ? 20 : 0;
        s.block_size = group == 2 ? 64 : 16;
        std::vector<int> positions(40);
        for (int i = 0; i < 40; ++i) positions[i] = 2304 + 61 * i;
        check_groups(s, positions, {{range(1, 36), 2304}, {{36, 39}, 1024}});
      }
    }
    if (!small && (t.kv.type == DType::bf16 || t.kv.type == DType::f8)) {
      Setup s = make(t, 1, 5, 128);
      check_groups(s, {18'000, 17'500, 17'408}, {{{0, 1, 2}, 17'408}});  // spans of 512
      check_captured(make(t, 2, 4, 128));
    }
  }
  if (small) {
    for (Types t : types({0})) check_captured(make(t, 2, 4, 128));
  }
}

}  // namespace sluice::cuda
