# For a tap of your own; put the address of the repository for REPOSITORY (docs/install.md).
class MlxNatsCluster < Formula
  desc "Serve language models on several Macs as one inference service"
  homepage "REPOSITORY"
  license :cannot_represent
  head "REPOSITORY", using: :git, branch: "main"

  depends_on "python@3.13"

  on_macos do
    depends_on arch: :arm64
    depends_on macos: :sonoma
  end

  def install
    (libexec/"source").install Dir["*"]
    programs = %w[cluster controller gateway worker]
    bin.write_exec_script(programs.map { |name| libexec/"venv/bin"/name })
  end

  # After Homebrew has rewritten what is linked: the headers of extension modules written in Rust
  # are too small for the longer paths.
  def post_install
    system Formula["python@3.13"].opt_bin/"python3.13", "-m", "venv", "--clear", libexec/"venv"
    system libexec/"venv/bin/python", "-m", "pip", "install", "--quiet", "#{libexec}/source[all]"
  end

  service do
    run [opt_bin/"cluster", "up"]
    keep_alive true
    log_path var/"log/mlx-nats-cluster.log"
    error_log_path var/"log/mlx-nats-cluster.log"
  end

  test do
    assert_match "version", shell_output("#{bin}/cluster --version")
  end
end
