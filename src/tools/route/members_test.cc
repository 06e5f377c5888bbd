#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "net/http.h"
#include "tools/route/router.h"

namespace sluice {

namespace {

using std::chrono::milliseconds;

// A worker at one of the addresses of this machine. Answers a POST with its address, but holds one
// to /v1/completions back until it may.
class NamedWorker {
 public:
  NamedWorker(const std::string& host, uint16_t port) {
    HttpServer::Options o;
    o.host = host;
    o.port = port;
    o.on_request = [this, host](HttpRequest request, std::shared_ptr<Responder> out) {
      HttpResponse r;
      r.body = request.method == "GET" ? "{}" : host;
      std::lock_guard lock(mutex_);
      hangs_ = hangs_ || (hangs_with_post_ && request.method == "POST");
      if (request.path != "/v1/completions" && !hangs_) return out->send(std::move(r));
      held_.push_back(std::move(out));
    };
    o.refuse = Router::refuse;
    server_ = std::move(*HttpServer::start(std::move(o)));
  }
  ~NamedWorker() { server_->stop(); }
  uint16_t port() const { return server_->port(); }
  // From the next POST on it answers nobody, not even probes.
  void hang_with_post() {
    std::lock_guard lock(mutex_);
    hangs_with_post_ = true;
  }
  size_t num_held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  void answer_held() {
    std::lock_guard lock(mutex_);
    for (const auto& out : held_) {
      HttpResponse r;
      r.body = "late";
      out->send(std::move(r));
    }
    held_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<Responder>> held_;
  bool hangs_with_post_ = false, hangs_ = false;
  std::unique_ptr<HttpServer> server_;
};

// A DNS name whose addresses tests change.
struct ChangingName {
  std::mutex mutex;
  Result<std::vector<std::string>> addresses = Error{503, "no server"};
  void set(Result<std::vector<std::string>> a) {
    std::lock_guard lock(mutex);
    addresses = std::move(a);
  }
};

// Asks until it is so; false: it never was.
template <typename F>
bool comes_true(F is_so) {
  for (int i = 0; i < 800; ++i, std::this_thread::sleep_for(milliseconds(25)))
    if (is_so()) return true;
  return false;
}

// A router on its thread, and a client of it.
class NamedCluster {
 public:
  explicit NamedCluster(uint16_t port) : router_(options(port)) {
    HttpServer::Options o;
    o.on_request = [this](HttpRequest request, std::shared_ptr<Responder> out) {
      router_.handle(std::move(request), std::move(out));
    };
    o.refuse = Router::refuse;
    server_ = std::move(*HttpServer::start(std::move(o)));
    EXPECT_TRUE(router_.start(*server_));
  }
  ~NamedCluster() {
    server_->stop();
    router_.close();
  }
  std::string ask(const char* method, const char* path, const std::string& body = "{}") const {
    HttpClient::Options o;
    o.url.host = "127.0.0.1";
    o.url.port = server_->port();
    const auto client = std::move(*HttpClient::open(o));
    return client->fetch(http_request_bytes(o.url, method, path, {}, body)).body;
  }
  // The value of a metric's only series.
  double metric(const std::string& metric_name) const {
    const std::string text = ask("GET", "/metrics");
    const size_t at = text.find("\n" + metric_name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + 2 + metric_name.size()));
  }
  // Until the workers that take requests are these, by what they answer; in turn.
  bool serves(const std::vector<std::string>& hosts) const {
    std::vector<std::string> want;
    for (const std::string& h : hosts) want.insert(want.end(), 2, h);
    return comes_true([&] {
      std::vector<std::string> got;
      for (size_t k = 0; k < want.size(); ++k) got.push_back(ask("POST", "/tokenize"));
      std::sort(got.begin(), got.end());
      return got == want;
    });
  }
  std::shared_ptr<ChangingName> name = std::make_shared<ChangingName>();

 private:
  RouterOptions options(uint16_t port) const {
    RouterOptions r;
    r.routing.policy = Routing::round_robin;
    r.worker.cost.rows = {{0, 5e-3}, {4096, 0.2}};
    r.dns_name = "workers";
    r.dns_port = port;
    r.dns_every = milliseconds(5);
    r.resolve = [n = name](const std::string&) {
      std::lock_guard lock(n->mutex);
      return n->addresses;
    };
    return r;
  }
  Router router_;
  std::unique_ptr<HttpServer> server_;
};

}  // namespace

TEST(RouterMembers, AddressesJoinAndLeave) {
  NamedWorker a("127.0.0.1", 0);
  NamedWorker b("127.0.0.2", a.port()), c("127.0.0.3", a.port());
  NamedCluster cluster(a.port());
  EXPECT_NE(cluster.ask("POST", "/tokenize").find("no_worker"), std::string::npos);
  cluster.name->set(std::vector<std::string>{"127.0.0.1", "127.0.0.2"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1", "127.0.0.2"}));
  // One leaves in the middle of a request, which it finishes.
  std::string late;
  std::thread client([&] { late = cluster.ask("POST", "/v1/completions"); });
  EXPECT_TRUE(comes_true([&] { return a.num_held() + b.num_held() > 0; }));
  NamedWorker& holds = a.num_held() > 0 ? a : b;
  const std::string stays = &holds == &a ? "127.0.0.2" : "127.0.0.1";
  cluster.name->set(std::vector<std::string>{stays, "127.0.0.3"});
  EXPECT_TRUE(cluster.serves({stays, "127.0.0.3"}));
  holds.answer_held();
  client.join();
  EXPECT_EQ(late, "late");
  EXPECT_EQ(cluster.metric("sluice_route_retries_total"), 0);
  // Without an answer of the name server all stays as it is.
  cluster.name->set(Error{503, "no server"});
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_TRUE(cluster.serves({stays, "127.0.0.3"}));
  // Workers that left come back.
  cluster.name->set(std::vector<std::string>{"127.0.0.1", "127.0.0.2"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1", "127.0.0.2"}));
}

// Each hangs when it gets a request, so that the second does when the first is known to.
TEST(RouterMembers, RequestsLeaveWorkersThatHang) {
  NamedWorker a("127.0.0.1", 0);
  NamedWorker b("127.0.0.2", a.port()), c("127.0.0.3", a.port());
  NamedCluster cluster(a.port());
  cluster.name->set(std::vector<std::string>{"127.0.0.1", "127.0.0.2", "127.0.0.3"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1", "127.0.0.2", "127.0.0.3"}));
  a.hang_with_post(), b.hang_with_post();
  std::vector<std::string> answers(3);
  std::vector<std::thread> clients;
  for (std::string& answer : answers)
    clients.emplace_back([&] { answer = cluster.ask("POST", "/tokenize"); });
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(answers, std::vector<std::string>(3, "127.0.0.3"));
  EXPECT_GE(cluster.metric("sluice_route_retries_total"), 1);
  // Nobody asks them while they are silent.
  EXPECT_TRUE(cluster.serves({"127.0.0.3"}));
}

// A request that computes for longer than any probe may take stays where it is. A machine that
// stands still for a second can miss a probe, hence three attempts.
TEST(RouterMembers, ASlowAnswerIsAwaited) {
  NamedWorker a("127.0.0.1", 0), b("127.0.0.2", a.port());
  NamedCluster cluster(a.port());
  cluster.name->set(std::vector<std::string>{"127.0.0.1", "127.0.0.2"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1", "127.0.0.2"}));
  bool stayed = false;
  for (int attempt = 0; attempt < 3 && !stayed; ++attempt) {
    const double before = cluster.metric("sluice_route_retries_total");
    std::string late;
    std::thread client([&] { late = cluster.ask("POST", "/v1/completions"); });
    std::this_thread::sleep_for(milliseconds(4000));
    const size_t held = a.num_held() + b.num_held();
    a.answer_held(), b.answer_held();
    client.join();
    EXPECT_EQ(late, "late");
    stayed = held == 1 && cluster.metric("sluice_route_retries_total") == before;
  }
  EXPECT_TRUE(stayed);
}

// A worker that takes the place of another has cached nothing of what that one was sent.
TEST(RouterMembers, APlaceIsTakenEmpty) {
  NamedWorker a("127.0.0.1", 0), b("127.0.0.2", a.port());
  NamedCluster cluster(a.port());
  const std::string prompt = "{\"prompt\":\"" + std::string(5000, 'a') + "\"}";
  const auto send = [&] { return cluster.ask("POST", "/api/generate", prompt); };
  cluster.name->set(std::vector<std::string>{"127.0.0.1"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1"}));
  for (int k = 0; k < 2; ++k) EXPECT_EQ(send(), "127.0.0.1");
  const double cached = cluster.metric("sluice_route_cached_tokens_total");
  EXPECT_GT(cached, 0);
  cluster.name->set(std::vector<std::string>{"127.0.0.2"});
  EXPECT_TRUE(cluster.serves({"127.0.0.2"}));
  EXPECT_EQ(send(), "127.0.0.2");
  EXPECT_EQ(cluster.metric("sluice_route_cached_tokens_total"), cached);
  EXPECT_EQ(send(), "127.0.0.2");
  EXPECT_GT(cluster.metric("sluice_route_cached_tokens_total"), cached);
}

// More addresses than places, over time: places of those that left are taken again.
TEST(RouterMembers, PlacesAreTakenAgain) {
  NamedWorker a("127.0.0.1", 0);
  NamedCluster cluster(a.port());
  for (size_t round = 0; round < 3; ++round) {
    std::vector<std::string> many;
    for (size_t k = 0; k < kMostWorkers; ++k)
      many.push_back("127.0." + std::to_string(round + 1) + "." + std::to_string(k + 1));
    cluster.name->set(many);
    EXPECT_TRUE(comes_true([&] {
      return cluster.ask("GET", "/metrics").find(many.back() + ":") != std::string::npos;
    }));
  }
  // Metrics do not grow with the addresses that there ever were.
  const std::string text = cluster.ask("GET", "/metrics");
  size_t num = 0;
  for (size_t at = 0; (at = text.find("\nsluice_route_worker_up{", at)) != text.npos; ++at) ++num;
  EXPECT_EQ(num, kMostWorkers);
  cluster.name->set(std::vector<std::string>{"127.0.0.1"});
  EXPECT_TRUE(cluster.serves({"127.0.0.1"}));
}

}  // namespace sluice
