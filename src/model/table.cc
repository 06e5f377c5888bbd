// The families. A new one is a file and a line here.
#include "base/str.h"
#include "model/config.h"
#include "model/families.h"
#include "model/model.h"

namespace sluice {

static constexpr ModelFamily kFamilies[] = {
    {"gemma2", &kGemma2, load_decoder}, {"gemma3", &kGemma3, load_decoder},
    {"gpt2", &kGpt2, load_gpt2},        {"llama", &kLlama, load_decoder},
    {"phi3", &kPhi3, load_decoder},     {"qwen2", &kQwen2, load_decoder},
    {"qwen3", &kQwen3, load_decoder},
};

std::span<const ModelFamily> model_families() { return kFamilies; }

namespace {

Result<const ModelFamily*> find_family(const Checkpoint& checkpoint) {
  const std::string* arch = checkpoint.meta().string("general.architecture");
  if (!arch)
    return Error{400, "the model file does not say its architecture (general.architecture)"};
  std::string known;
  for (const ModelFamily& f : kFamilies) {
    if (*arch == f.arch) return &f;
    known += known.empty() ? f.arch : std::string(", ") + f.arch;
  }
  return Error{
      400, strf("architecture %s is not supported: %s are", quote(*arch).c_str(), known.c_str())};
}

}  // namespace

Result<std::unique_ptr<Model>> load_model(const ModelSource& source,
                                          WeightStore& store,
                                          const LoadOptions& options) {
  Result<const ModelFamily*> family = find_family(source.headers);
  if (!family) return family.error();
  return (*family)->load(source, store, options, *(*family)->traits);
}

Result<ModelShape> read_shape(const Checkpoint& checkpoint) {
  Result<const ModelFamily*> family = find_family(checkpoint);
  if (!family) return family.error();
  Result<DecoderConfig> c = read_decoder_config(checkpoint, nullptr, *(*family)->traits);
  if (!c) return c.error();
  return c->shape();
}

}  // namespace sluice
