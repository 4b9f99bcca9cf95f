// All sessions of a run: this process's, which is rank 0, and those of the other ranks, which obey
// its commands (train/worker.h). With one rank the crew is just its session. Ranks cannot disagree
// on what comes next, because only rank 0 decides.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/progress.h"
#include "train/crew_messages.h"
#include "train/result_source.h"
#include "train/run_data.h"

namespace jackscrew {

// Tells the other ranks, which must be waiting for the next command, that the run has ended.
// `transport` may be null.
void dismiss(Transport* transport);

// What one rank holds, and the traffic and waiting so far.
struct RankReport {
  std::string host, computes_on;  // a machine, and its device: "cuda:1"
  Ledger device, host_memory;
  Traffic sent;
  double seconds_waited = 0;  // by steps
};

class Crew : public ResultSource {
 public:
  // `transport` is null where there is one rank; `given` is the recipe with which this one was
  // started, as YAML. All that is referred to must outlive the crew.
  Crew(const Recipe& recipe, const ModelFiles& files, Transport* transport, std::string given);
  ~Crew() override;

  const Layout& layout() const { return use_.place.layout; }
  const SessionUse& use() const { return use_; }

  // Every rank rehearses its part; returns rank 0's plan. `data` is what the data are still to
  // take, `file_bytes` the memory that files of output_dir are. Warns where ranks were started with
  // different recipes. Throws Error(does_not_fit) where a rank does not fit, or where the ranks of
  // one machine do not fit together, and the errors of opening.h.
  SessionPlan rehearse(const DataMemory& data, int64_t file_bytes = 0);
  // Creates the sessions of all ranks.
  void load(const SessionPlan& plan, const ProgressStyle& style);
  // This process's session.
  Session& session() { return *session_; }

  // The functions of Session and Learner of these names, applied to all ranks.
  void begin_run(int64_t total_steps);
  void accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                  const ProgressCallback& progress);
  void apply(const WeightDecay& weight_decay);
  StepResult result();
  double loss_sum(const StepBatch& batch, const ProgressCallback& progress);
  std::vector<LearnerEvent> take_events();
  void learner_restored();
  void restored();
  void reserve_master_files();  // where this rank is alone
  std::string non_finite_parameter();

  nlohmann::json adapter() override;
  void visit(const StateVisitor& visitor) override;
  Ops& ops() override { return session_->ops(); }
  std::vector<SafetensorsSpec> weights() override;
  void write_weight(const std::string& name, const ByteSink& sink) override;

  // One report per rank.
  std::vector<RankReport> reports();
  // Whether this rank failed within work that other ranks share, or other ranks cannot be reached.
  bool is_in_common_work() const { return in_common_work_ || has_lost_ranks_; }

 private:
  class State;
  // Runs work that other ranks share; is_in_common_work() is true meanwhile.
  template <class Work>
  auto in_common_work(const Work& work);
  struct Listed;
  std::vector<std::vector<uint8_t>> begin_together(const std::function<void()>& work);
  void communicate(const std::function<void()>& work);

  bool is_alone() const { return transport_ == nullptr; }
  int ranks() const { return layout().ranks(); }
  void send(int rank, const MessageWriter& message);
  void send_all(const MessageWriter& message);
  void send_all(Command command);
  // With a batch behind the message.
  void send_all(MessageWriter message, const StepBatch& batch);
  std::vector<uint8_t> receive(int rank);
  // Has a rank obey a command, and returns its answer.
  MessageReader ask(int rank, Command command);
  // The ranks that hold the same stage as `rank`, itself included.
  std::vector<int> replicas_of(int rank) const;

  const Recipe& recipe_;
  const ModelFiles& files_;
  Transport* transport_;
  std::string given_;
  SessionUse use_;
  std::unique_ptr<Session> session_;
  bool in_common_work_ = false, has_lost_ranks_ = false;
  std::map<std::string, int> owners_;  // weight name -> rank, for weights that rank 0 does not hold
};

}  // namespace jackscrew
