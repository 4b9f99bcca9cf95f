#include "report/event_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/support/resource_limit.h"

namespace jackscrew {
namespace {

class EventLogTest : public ::testing::Test {
 protected:
  EventLogTest()
      : path_(fs::temp_directory_path() /
              ("jackscrew_log_" + std::to_string(::getpid()) + ".jsonl")) {}
  ~EventLogTest() override { fs::remove(path_); }

  std::vector<nlohmann::json> events() const {
    std::vector<nlohmann::json> out;
    const std::string text = read_text(path_);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      out.push_back(nlohmann::json::parse(text.substr(begin, end - begin)));
      begin = end + 1;
    }
    return out;
  }

  void append(const char* text) const {
    FileWriter writer(path_, WriteMode::append);
    writer.write(text);
    writer.close();
  }

  fs::path path_;
};

TEST_F(EventLogTest, EveryLineIsReadableAtOnce) {
  append("left from another run\n");
  EventLog log(path_);
  log.write(EventKind::start, 0);
  JsonObject fields;
  fields.add("loss", 1.5).add("grad_norm", std::nan(""));
  log.write(EventKind::step, 1, fields);
  const auto seen = events();
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[0]["event"], "start");
  EXPECT_EQ(seen[1]["event"], "step");
  EXPECT_EQ(seen[1]["step"], 1);
  EXPECT_EQ(seen[1]["loss"], 1.5);
  EXPECT_TRUE(seen[1]["grad_norm"].is_null());
  EXPECT_GT(seen[1]["time"].get<double>(), 1.6e9);
  EXPECT_GE(seen[1]["time"].get<double>(), seen[0]["time"].get<double>());
}

TEST_F(EventLogTest, StepsDoNotFallBack) {
  EventLog log(path_);
  log.write(EventKind::step, 5);
  log.write(EventKind::eval, 5);
  EXPECT_THROW(log.write(EventKind::step, 4), Error);
}

// What a learner does as a step begins has the number of the steps before, as has the checkpoint.
TEST_F(EventLogTest, ResumeDropsWhatALearnerWillDoAgain) {
  {
    EventLog log(path_);
    log.write(EventKind::start, 0);
    log.write("rotate", 2);
    log.write(EventKind::step, 4);
    log.write(EventKind::save, 4);
    log.write("rotate", 4);
  }
  EventLog log(path_, 4);
  log.write("rotate", 4);
  std::string order;
  for (const auto& event : events()) order += event["event"].get<std::string>() + " ";
  EXPECT_EQ(order, "start rotate step save rotate ");
}

TEST_F(EventLogTest, ResumeDropsStepsDoneAgainAndTornLines) {
  {
    EventLog log(path_);
    log.write(EventKind::start, 0);
    for (int64_t step = 1; step <= 6; ++step) log.write(EventKind::step, step);
    log.write(EventKind::end, 6);
  }
  append("{\"event\": \"step\", \"st");
  EventLog log(path_, 4);
  EXPECT_THROW(log.write(EventKind::step, 3), Error);
  log.write(EventKind::step, 5);
  std::string order;
  for (const auto& event : events()) {
    order += event["event"].get<std::string>() + std::to_string(event["step"].get<int>()) + " ";
  }
  EXPECT_EQ(order, "start0 step1 step2 step3 step4 step5 ");
}

TEST_F(EventLogTest, EvaluationsOfOtherDataAreDropped) {
  EventLog log(path_);
  const auto start = [&](const char* held_out) {
    JsonObject fields;
    if (*held_out != '\0') fields.add(kHeldOutFingerprint, held_out);
    log.write(EventKind::start, 0, fields);
  };
  const auto evaluated = [&](int loss) {
    log.write(EventKind::eval, 0, JsonObject().add("eval_loss", loss));
  };
  const auto kept = [&] {
    std::vector<int> losses;
    for_comparable_events(path_, [&](const nlohmann::json& event) {
      if (event["event"] == "eval") losses.push_back(event["eval_loss"]);
    });
    return losses;
  };
  EXPECT_EQ(held_out_fingerprint(path_), "");
  start("");  // of an older version
  evaluated(1);
  start("a");
  evaluated(2);
  EXPECT_EQ(kept(), (std::vector<int>{1, 2}));
  start("b");
  EXPECT_EQ(held_out_fingerprint(path_), "b");
  evaluated(3);
  EXPECT_EQ(kept(), (std::vector<int>{1, 3}));
  start("a");  // again
  EXPECT_EQ(kept(), (std::vector<int>{1, 2}));
  start("");
  EXPECT_EQ(kept(), (std::vector<int>{1, 2, 3}));
}

// Everything valid is seen, of kinds that nobody knows and of steps that come again too, whatever
// the lines between and however a line ends.
TEST_F(EventLogTest, EventsAreSeenInOrderWithoutInvalidLines) {
  const auto seen = [&] {
    std::string order;
    for_events(path_, [&](const nlohmann::json& event) {
      order += event["event"].get<std::string>() + std::to_string(event["step"].get<int>()) + " ";
    });
    return order;
  };
  EXPECT_EQ(seen(), "") << "there is no log";
  append("");
  EXPECT_EQ(seen(), "");
  append(R"({"event": "start", "step": 0, "eval_data_fingerprint": "a"})"
         "\n\n[1]\n7\n"
         R"({"event": "step", "step": 1.5})"
         "\n"
         R"({"event": 3, "step": 1})"
         "\n"
         R"({"step": 1})"
         "\n"
         R"({"event": "of another version", "step": 1})"
         "\r\n"
         R"({"event": "step", "step": 2})"
         "\n"
         R"({"event": "step", "step": 2})"
         "\n"
         R"({"event": "end", "step": 3})");
  EXPECT_EQ(seen(), "start0 of another version1 step2 step2 end3 ") << "the last line has no end";
  append(R"({"event": "start", "st)");
  EXPECT_EQ(seen(), "start0 of another version1 step2 step2 ") << "it is torn";
  EXPECT_EQ(held_out_fingerprint(path_), "a");
}

// Pages of the file that were read are given back meanwhile.
TEST_F(EventLogTest, ALongLogIsReadWhole) {
  const std::string long_text(1000, 'x');
  {
    EventLog log(path_);
    for (int64_t step = 0; step < 5000; ++step) {
      log.write(EventKind::warn, step, JsonObject().add("message", long_text));
    }
  }
  const auto expect_steps = [&](int64_t count) {
    int64_t next = 0;
    for_events(path_, [&](const nlohmann::json& event) {
      EXPECT_EQ(event["step"], next++);
      EXPECT_TRUE(event["message"] == long_text);
    });
    EXPECT_EQ(next, count);
  };
  expect_steps(5000);
  EXPECT_EQ(logged_until(path_, 5000), 5000) << "no step has a line";
  const EventLog resumed(path_, 4000);
  EXPECT_EQ(resumed.last_step(), 4000);
  expect_steps(4001);
}

TEST_F(EventLogTest, ResumeWithoutALogStartsOne) {
  EventLog log(path_, 4);
  log.write(EventKind::step, 5);
  EXPECT_EQ(events().size(), 1u);
}

// By an empty file, as logrotate leaves one, by a copy of its beginning, by all of it, and by what
// somebody has written.
TEST_F(EventLogTest, AnotherFileInItsPlaceGetsWhatItLacks) {
  const fs::path renamed = path_.string() + ".1";
  const std::string theirs = R"({"event": "theirs", "step": 0})"
                             "\n";
  for (const int other : {0, 1, 2, 3}) {
    SCOPED_TRACE(other);
    ::testing::internal::CaptureStderr();
    {
      EventLog log(path_);
      log.write(EventKind::start, 0);
      log.write(EventKind::step, 1);
      for (int times = 0; times < 2; ++times) {
        const std::string own = read_text(path_);
        const std::string there[] = {"", own.substr(0, 10), own, theirs};
        fs::rename(path_, renamed);
        append(there[other].c_str());
        log.write(EventKind::step, 2 + times);
        log.put_back(path_.parent_path());
        fs::remove(renamed);
        log.put_back(path_.parent_path());
      }
      log.write(EventKind::end, 3);
    }
    const std::string warnings = ::testing::internal::GetCapturedStderr();
    std::string order;
    for (const auto& event : events()) {
      order += event["event"].get<std::string>() + std::to_string(event["step"].get<int>()) + " ";
    }
    EXPECT_EQ(order, std::string(other == 3 ? "theirs0 " : "") + "start0 step1 step2 step3 end3 ");
    EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
    EXPECT_NE(warnings.find("another file has taken the place of " + path_.string()),
              std::string::npos)
        << warnings;
  }
}

TEST_F(EventLogTest, WhatIsNoFileInItsPlaceGetsNoLines) {
  const fs::path renamed = path_.string() + ".1";
  EventLog log(path_);
  log.write(EventKind::start, 0);
  fs::rename(path_, renamed);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  ::testing::internal::CaptureStderr();
  for (int times = 0; times < 2; ++times) log.put_back(path_.parent_path());
  log.write(EventKind::step, 1);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 1) << warnings;
  EXPECT_NE(warnings.find(path_.string() + ": it is not a file; remove that"), std::string::npos)
      << warnings;
  fs::remove(path_);
  log.put_back(path_.parent_path());
  EXPECT_EQ(events().size(), 2u);
  fs::remove(renamed);
}

TEST_F(EventLogTest, StepsAreLostBeforeTheEventsOfARun) {
  EventLog log(path_);
  const std::string long_text(size_t{1} << 20, 'x');
  ::testing::internal::CaptureStderr();
  {
    const NoRoom no_room;
    for (int step = 1; step <= 20; ++step) {
      log.write(EventKind::step, step, JsonObject().add("text", long_text));
    }
    log.write("rotate", 20, JsonObject().add("text", long_text));
    log.write(EventKind::eval, 20, JsonObject().add("text", long_text));
  }
  log.write(EventKind::step, 21);
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  std::vector<std::string> order;
  for (const auto& event : events()) {
    order.push_back(event["event"].get<std::string>() + std::to_string(event["step"].get<int>()));
  }
  ASSERT_EQ(order.size(), 17u);
  EXPECT_EQ(order[14], "step15");
  EXPECT_EQ(order[15], "eval20");
  EXPECT_EQ(order[16], "step21");
  EXPECT_EQ(std::count(warnings.begin(), warnings.end(), '\n'), 2) << warnings;
  for (const char* part : {"lines are lost unless the file size limit is raised (ulimit -f",
                           "from now on further ones are lost until it can be written"}) {
    EXPECT_NE(warnings.find(part), std::string::npos) << warnings;
  }
}

TEST_F(EventLogTest, AnUnwritablePathIsAnError) {
  EXPECT_THROW(EventLog("/nonexistent/train_log.jsonl"), Error);
}

}  // namespace
}  // namespace jackscrew
