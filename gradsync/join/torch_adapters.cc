#include "gradsync/join/torch_adapters.h"

#include "allreduce/gloo_gradient_sync.h"
#include "allreduce/open_nccl.h"
#include "core/gpu/open_gpu.h"

namespace gradsync {

Adapters TorchAdapters() {
  Adapters adapters;
  adapters.open_gpu = OpenGpu;
  if (NcclVersion() != 0) adapters.open_nccl = OpenNccl;
  adapters.create_gloo = [](const WorkerGroup& group, UpdateSite update_site) {
    GlooOptions gloo;
    gloo.group = group;
    gloo.update_site = update_site;
    return CreateGlooGradientSync(gloo);
  };
  return adapters;
}

}  // namespace gradsync
