#include "load/open.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/cache_dir.h"
#include "base/nearest.h"
#include "base/str.h"
#include "load/default_model.h"
#include "load/embedded.h"
#include "load/hf_directory.h"
#include "load/random_checkpoint.h"
#include "load/vocab.h"
#include "tensor/formats/all.h"
#include "tensor/gguf.h"

namespace sluice {

namespace {

constexpr std::string_view kDefaultModel = "smollm2";
constexpr const char* kDefaultFile = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr off_t kDefaultBytes = 98362432;

// Runs the script that gets and checks the default model; its progress goes to stderr.
Result<void> run_fetch_script() {
  std::string script;
  for (const EmbeddedFile& f : embedded_scripts()) script.append(f.text).append("\n");
  pid_t child = fork();
  if (child < 0) return Error{500, strf("cannot start bash: %s", std::strerror(errno))};
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    execlp("bash", "bash", "-c", script.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  // The script has said what was wrong and where to put the file by hand.
  return Error{404, strf("the default model is not at %s and could not be fetched",
                         default_model_path().c_str())};
}

Result<std::unique_ptr<Checkpoint>> open_random(const std::string& shape,
                                                const std::string& format,
                                                uint64_t seed) {
  const FormatInfo* f = find_format(format);
  if (!f) return Error{400, strf("unknown format %s for random weights", quote(format).c_str())};
  std::string list;
  std::vector<std::string> known;
  for (const EmbeddedFile& e : embedded_shapes()) {
    std::string_view stem = e.name.substr(0, e.name.size() - std::string_view(".json").size());
    if (stem == shape || e.name == shape) {
      return random_checkpoint_from_text(e.text, std::string(e.name), f->format, seed);
    }
    list.append(list.empty() ? "" : ", ").append(stem);
    known.emplace_back(stem);
  }
  if (access(shape.c_str(), F_OK) != 0) {
    std::string near = nearest(shape, known);
    if (!near.empty()) near = "; did you mean random:" + near + "?";
    return Error{404, strf("random:%s: no such shape or file%s; shapes: %s", shape.c_str(),
                           near.c_str(), list.c_str())};
  }
  return random_checkpoint(shape, f->format, seed);
}

bool is_directory(const std::string& path) {
  struct stat st = {};
  return stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

Result<std::unique_ptr<Checkpoint>> open_path(const std::string& path) {
  if (is_directory(path)) return open_hf_directory(path);
  if (path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json")) {
    return Error{400, strf("%s: give the directory that it lies in, with config.json beside it",
                           quote(path, 400).c_str())};
  }
  return open_gguf(path);
}

}  // namespace

std::string default_model_path() {
  const char* own = std::getenv("SLUICE_CACHE");
  std::string cache = own && *own ? own : user_cache_dir().string();
  return cache + "/models/" + kDefaultFile;
}

Result<std::string> fetch_default_model() {
  std::string path = default_model_path();
  struct stat st = {};
  if (stat(path.c_str(), &st) != 0 || st.st_size != kDefaultBytes) {
    if (auto ok = run_fetch_script(); !ok) return ok.error();
  }
  return path;
}

Result<std::unique_ptr<Checkpoint>> open_model(const std::string& name,
                                               const std::string& format,
                                               uint64_t seed) {
  if (name.empty()) {
    return Error{400,
                 "no model given: smollm2, hf:ORG/REPO[:QUANT], a .gguf file, a model's directory, "
                 "or random:SHAPE"};
  }
  if (name.starts_with("random:")) return open_random(name.substr(7), format, seed);
  if (name != kDefaultModel) return open_path(name);
  Result<std::string> path = fetch_default_model();
  return path ? open_gguf(*path) : path.error();
}

Result<std::unique_ptr<Checkpoint>> open_text(const std::string& name) {
  return is_directory(name) ? open_hf_text(name) : open_model(name, "q8_0", 0);
}

bool has_vocabulary(const Checkpoint& checkpoint) {
  const Meta& meta = checkpoint.meta();
  return meta.has("tokenizer.ggml.tokens") || meta.has("tokenizer.huggingface.json") ||
         meta.has("tokenizer.sentencepiece.model");
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const Checkpoint& checkpoint) {
  return tokenizer_from_meta(checkpoint.meta());
}

Result<std::optional<ChatTemplate>> load_chat_template(const Checkpoint& checkpoint) {
  const std::string* source = checkpoint.meta().string("tokenizer.chat_template");
  if (!source) return std::optional<ChatTemplate>();
  Result<ChatTemplate> chat = ChatTemplate::parse(*source);
  if (!chat) return chat.error();
  return std::optional<ChatTemplate>(std::move(*chat));
}

}  // namespace sluice
