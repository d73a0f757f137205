// Compiled anew whenever a program is linked, with what Bazel knows of the build.

namespace gradsync {

extern const char kBuildCommit[];

#ifdef BUILD_SCM_REVISION
const char kBuildCommit[] = BUILD_SCM_REVISION;
#else
const char kBuildCommit[] = "";
#endif

}  // namespace gradsync
