# What the library links: a dependency's CMake package where it has one, else its pkg-config modules.

set(GRADSYNC_ABSEIL_PARTS
  algorithm_container any_invocable base cleanup cord core_headers flat_hash_map flat_hash_set function_ref inlined_vector memory
  optional span status statusor str_format strings synchronization time variant)

# Sets `targets`, and `version`: Abseil's of a release, such as 20220623, whose programs and libraries fit no other's.
function(gradsync_find_abseil targets version)
  find_package(absl CONFIG QUIET)
  if(absl_FOUND)
    list(TRANSFORM GRADSYNC_ABSEIL_PARTS PREPEND "absl::" OUTPUT_VARIABLE found)
    set(found_version "${absl_VERSION}")
  else()
    find_package(PkgConfig REQUIRED)
    list(TRANSFORM GRADSYNC_ABSEIL_PARTS PREPEND "absl_" OUTPUT_VARIABLE modules)
    pkg_check_modules(GRADSYNC_ABSEIL REQUIRED IMPORTED_TARGET GLOBAL ${modules})
    set(found PkgConfig::GRADSYNC_ABSEIL)
    set(found_version "${GRADSYNC_ABSEIL_absl_base_VERSION}")
  endif()
  set(${targets} "${found}" PARENT_SCOPE)
  set(${version} "${found_version}" PARENT_SCOPE)
endfunction()

# One dependency: the first of `candidates` that is a target, else pkg-config's `module`. Sets `target`.
function(gradsync_find_one target module)
  foreach(candidate IN LISTS ARGN)
    if(TARGET ${candidate})
      set(${target} ${candidate} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  find_package(PkgConfig REQUIRED)
  string(MAKE_C_IDENTIFIER "GRADSYNC_${module}" name)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  set(${target} PkgConfig::${name} PARENT_SCOPE)
endfunction()

# Sets `targets` to all that the library links.
function(gradsync_find_dependencies targets)
  gradsync_find_abseil(abseil abseil_version)
  find_package(Threads REQUIRED)
  find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
  find_package(gRPC CONFIG QUIET)
  gradsync_find_one(grpc grpc++ gRPC::grpc++)
  find_package(Protobuf QUIET)
  gradsync_find_one(protobuf protobuf protobuf::libprotobuf)
  set(${targets} ${grpc} ${protobuf} ${abseil} OpenSSL::SSL OpenSSL::Crypto Threads::Threads PARENT_SCOPE)
endfunction()
