#include "net/ucx_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/str.h"

namespace sluice {

namespace {

template <typename F>
bool find_symbol(void* library, const char* name, F& to) {
  to = reinterpret_cast<F>(dlsym(library, name));
  return to != nullptr;
}

bool find_all(void* p, void* s, UcxLibrary& x) {
  return find_symbol(p, "ucp_config_read", x.config_read) &&
         find_symbol(p, "ucp_config_release", x.config_release) &&
         find_symbol(p, "ucp_init_version", x.init_version) &&
         find_symbol(p, "ucp_worker_create", x.worker_create) &&
         find_symbol(p, "ucp_worker_destroy", x.worker_destroy) &&
         find_symbol(p, "ucp_worker_progress", x.worker_progress) &&
         find_symbol(p, "ucp_worker_arm", x.worker_arm) &&
         find_symbol(p, "ucp_worker_get_efd", x.worker_get_efd) &&
         find_symbol(p, "ucp_worker_signal", x.worker_signal) &&
         find_symbol(p, "ucp_listener_create", x.listener_create) &&
         find_symbol(p, "ucp_listener_destroy", x.listener_destroy) &&
         find_symbol(p, "ucp_listener_query", x.listener_query) &&
         find_symbol(p, "ucp_listener_reject", x.listener_reject) &&
         find_symbol(p, "ucp_ep_create", x.ep_create) &&
         find_symbol(p, "ucp_ep_close_nbx", x.ep_close) &&
         find_symbol(p, "ucp_ep_flush_nbx", x.ep_flush) &&
         find_symbol(p, "ucp_stream_send_nbx", x.stream_send) &&
         find_symbol(p, "ucp_stream_recv_nbx", x.stream_receive) &&
         find_symbol(p, "ucp_request_check_status", x.request_status) &&
         find_symbol(p, "ucp_request_free", x.request_free) &&
         find_symbol(s, "ucs_status_string", x.status_string);
}

Result<UcxLibrary> load_library() {
  // Signals are ours, and so is standard output.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_LOG_FILE", "/dev/stderr", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);  // a peer that goes away is no error here
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 0);
  // Bytes are copied when they are sent: an operation that is broken off reads no memory of ours.
  setenv("UCX_ZCOPY_THRESH", "inf", 0);
  void* s = dlopen("libucs.so.0", RTLD_NOW | RTLD_LOCAL);
  void* p = s ? dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL) : nullptr;
  UcxLibrary x;
  if (!p || !find_all(p, s, x))
    return Error{400, "UCX is not installed here (libucx0): use --kv-transport tcp"};
  ucp_config_t* config = nullptr;
  ucs_status_t status = x.config_read(nullptr, nullptr, &config);
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_STREAM | UCP_FEATURE_WAKEUP;
    params.mt_workers_shared = 1;
    status = x.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &x.context);
    x.config_release(config);
  }
  if (status != UCS_OK)
    return Error{400,
                 strf("UCX does not start: %s: use --kv-transport tcp", x.status_string(status))};
  return x;
}

}  // namespace

// Never unloaded: its own threads run on.
Result<const UcxLibrary*> UcxLibrary::get() {
  static const Result<UcxLibrary> loaded = load_library();
  if (!loaded) return loaded.error();
  return &*loaded;
}

}  // namespace sluice
