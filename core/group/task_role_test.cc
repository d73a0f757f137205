#include <string>

#include "absl/status/status.h"
#include "core/group/launch_environment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LaunchEnvironment Task(int task, int tasks) {
  LaunchEnvironment environment;
  environment.launcher = Launcher::kSlurm;
  environment.rank = task;
  environment.world_size = tasks;
  return environment;
}

TEST(TaskRoleTest, TheLastTasksAreServersAndARankIsItsTasksNumber) {
  for (int tasks = 2; tasks <= 7; ++tasks) {
    for (int servers = 1; servers < tasks; ++servers) {
      for (int task = 0; task < tasks; ++task) {
        const absl::StatusOr<TaskRole> role = RoleOfTask(Task(task, tasks), servers);
        ASSERT_TRUE(role.ok());
        EXPECT_EQ(role->workers, tasks - servers);
        EXPECT_EQ(role->is_server, task >= tasks - servers);
        EXPECT_EQ(role->number, task < role->workers ? task : task - role->workers);
      }
    }
  }
}

TEST(TaskRoleTest, AJobNeedsAServerAndAWorker) {
  for (int servers : {-1, 0, 3, 4}) {
    const absl::Status status = RoleOfTask(Task(0, 3), servers).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("--server_tasks"), HasSubstr("3 tasks")));
  }
}

TEST(TaskRoleTest, WithoutALauncherNobodyCounts) {
  EXPECT_THAT(std::string(RoleOfTask({}, 1).status().message()), HasSubstr("found none of them"));
}

TEST(TaskRoleTest, AProgramInTheOthersPlaceIsToldTheRule) {
  const TaskRole server = RoleOfTask(Task(4, 6), 2).value();
  EXPECT_TRUE(ExpectRole(server, 2, /*is_server=*/true).ok());
  EXPECT_EQ(ExpectRole(server, 2, /*is_server=*/false).message(),
            "--server_tasks: expected workers first and then servers, so task 4 of 6 as a server, "
            "found a worker");
  const TaskRole worker = RoleOfTask(Task(0, 6), 2).value();
  EXPECT_TRUE(ExpectRole(worker, 2, /*is_server=*/false).ok());
  EXPECT_EQ(ExpectRole(worker, 2, /*is_server=*/true).message(),
            "--server_tasks: expected workers first and then servers, so task 0 of 6 as a worker, "
            "found a server");
}

}  // namespace
}  // namespace gradsync
