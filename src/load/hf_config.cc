#include "load/hf_config.h"

#include <cmath>
#include <cstdint>
#include <optional>

#include "base/json.h"
#include "base/str.h"

namespace sluice {
namespace {

// Reads fields with range checks; remembers the first failure. A null is an absent field.
class Fields {
 public:
  Fields(const json::object& object, std::string& error) : object_(object), error_(error) {}

  const json::value* find(const char* key) const {
    const json::value* v = object_.if_contains(key);
    return v && !v->is_null() ? v : nullptr;
  }

  double number(const char* key, double lo, double hi, std::optional<double> fallback = {}) {
    const json::value* v = find(key);
    if (!v && fallback) return *fallback;
    if (!v) return fail(strf("has no %s", key)), lo;
    double x = 0;
    if (v->is_double()) {
      x = v->get_double();
    } else if (v->is_int64()) {
      x = static_cast<double>(v->get_int64());
    } else if (v->is_uint64()) {
      x = static_cast<double>(v->get_uint64());
    } else {
      return fail(strf("%s must be a number", key)), lo;
    }
    if (!(x >= lo && x <= hi)) fail(strf("%s is %g, outside %g to %g", key, x, lo, hi));
    return x >= lo && x <= hi ? x : lo;
  }

  int integer(const char* key, int lo, int hi, std::optional<int> fallback = {}) {
    const double x =
        number(key, lo, hi, fallback ? std::optional<double>(*fallback) : std::nullopt);
    if (x != std::trunc(x)) fail(strf("%s must be a whole number", key));
    return static_cast<int>(x);
  }

  bool boolean(const char* key, bool fallback) {
    const json::value* v = find(key);
    if (!v) return fallback;
    if (!v->is_bool()) fail(strf("%s must be true or false", key));
    return v->is_bool() && v->get_bool();
  }

  std::string string(const char* key) {
    const json::value* v = find(key);
    if (!v) return "";
    if (!v->is_string()) fail(strf("%s must be a string", key));
    return v->is_string() ? std::string(v->get_string()) : "";
  }

  const json::object* object(const char* key) {
    const json::value* v = find(key);
    if (v && !v->is_object()) fail(strf("%s must be an object", key));
    return v ? v->if_object() : nullptr;
  }

  void fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
  }

 private:
  const json::object& object_;
  std::string& error_;
};

void read_scaling(HfRope& rope, Fields f, int context) {
  std::string type = f.string("rope_type");
  if (type.empty()) type = f.string("type");
  if (type.empty() || type == "default") return;
  rope.scaling = type;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    f.fail(
        strf("rope scaling %s is not supported: linear, llama3 and yarn are", quote(type).c_str()));
    return;
  }
  rope.factor = f.number("factor", 1, 1e6);
  if (type == "linear") return;
  rope.original_context = f.integer("original_max_position_embeddings", 1, 1 << 30,
                                    type == "yarn" ? std::optional<int>(context) : std::nullopt);
  if (type == "llama3") {
    rope.low_freq_factor = f.number("low_freq_factor", 1e-3, 1e6);
    rope.high_freq_factor = f.number("high_freq_factor", 1e-3, 1e6);
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      f.fail("high_freq_factor must be above low_freq_factor");
    }
  } else {
    rope.attention_factor = f.number("attention_factor", 0, 1e3, 0.0);
    rope.beta_fast = f.number("beta_fast", 1e-3, 1e6, 32.0);
    rope.beta_slow = f.number("beta_slow", 1e-3, 1e6, 1.0);
  }
}

// Newer files hold all of it in rope_parameters, older ones in rope_theta and rope_scaling.
void read_rope(HfRope& rope, Fields& f, std::string& error, int context) {
  const json::object* scaling = f.object("rope_parameters");
  rope.theta = f.number("rope_theta", 1, 1e12, 10000.0);
  if (scaling) {
    rope.theta = Fields(*scaling, error).number("rope_theta", 1, 1e12, rope.theta);
  } else {
    scaling = f.object("rope_scaling");
  }
  if (scaling) read_scaling(rope, Fields(*scaling, error), context);
}

void read_family(HfConfig& c, Fields& f) {
  const std::string type = f.string("model_type");
  if (type == "llama" || type == "mistral") {
    c.arch = "llama";
  } else if (type == "qwen2" || type == "qwen3") {
    c.arch = type;
  } else {
    f.fail(strf("model_type %s is not supported: llama, mistral, qwen2 and qwen3 are",
                quote(type).c_str()));
  }
  c.qkv_bias = type == "qwen2";
  c.qk_norm = type == "qwen3";
  if (f.boolean("attention_bias", c.qkv_bias) != c.qkv_bias) {
    f.fail(strf("attention_bias must be %s for %s", c.qkv_bias ? "true" : "false", type.c_str()));
  }
  const bool qwen = type == "qwen2" || type == "qwen3";
  const int window = f.integer("sliding_window", 0, 1 << 30, 0);
  c.window = f.boolean("use_sliding_window", !qwen) ? window : 0;
}

void read_heads(HfConfig& c, Fields& f) {
  c.num_heads = f.integer("num_attention_heads", 1, 4096);
  c.num_kv_heads = f.integer("num_key_value_heads", 1, 4096, c.num_heads);
  if (c.num_heads % c.num_kv_heads != 0) {
    f.fail(strf("num_attention_heads (%d) must be a multiple of num_key_value_heads (%d)",
                c.num_heads, c.num_kv_heads));
  }
  if (f.find("head_dim")) {
    c.head_dim = f.integer("head_dim", 8, 256);
  } else if (c.arch == "qwen3") {
    c.head_dim = 128;
  } else if (c.hidden % c.num_heads == 0) {
    c.head_dim = c.hidden / c.num_heads;
  } else {
    f.fail(strf("hidden_size (%d) must be a multiple of num_attention_heads (%d)", c.hidden,
                c.num_heads));
  }
  if (c.head_dim < 8 || c.head_dim > 256 || c.head_dim % 2 != 0) {
    f.fail(
        strf("a head dimension of %d is not supported: even ones from 8 to 256 are", c.head_dim));
  }
}

}  // namespace

Result<HfConfig> parse_hf_config(std::string_view json_text) {
  auto parsed = parse_json(json_text);
  if (!parsed) return parsed.error();
  const json::object* object = parsed->if_object();
  if (!object) return Error{400, "must be a JSON object: a model's config.json"};
  HfConfig c;
  std::string error;
  Fields f(*object, error);
  read_family(c, f);
  c.num_layers = f.integer("num_hidden_layers", 1, 1024);
  c.hidden = f.integer("hidden_size", 8, 1 << 17);
  c.ffn = f.integer("intermediate_size", 8, 1 << 20);
  c.vocab = f.integer("vocab_size", 1, 1 << 24);
  c.context = f.integer("max_position_embeddings", 1, 1 << 30);
  c.eps = f.number("rms_norm_eps", 0, 1, 1e-6);
  c.tied = f.boolean("tie_word_embeddings", false);
  read_heads(c, f);
  read_rope(c.rope, f, error, c.context);
  if (!error.empty()) return Error{400, error};
  return c;
}

}  // namespace sluice
