;;; eglot.el --- What eglot sees of a language server  -*- lexical-binding: t; -*-

;; Loaded after the snippet of docs/language-server.md; what was seen is printed as one line of JSON.

(require 'cl-lib)
(require 'json)
(require 'flymake)

(defvar patience 40 "Seconds to wait for anything: far more than it takes.")

(defun saw (&rest what)
  (princ (format "\nSAW %s\n" (json-encode what))))

(defun wait-until (done)
  (with-timeout (patience (error "Waited in vain"))
    (while (not (funcall done))
      (accept-process-output nil 0.05))))

(defun problems ()
  (mapcar #'flymake-diagnostic-text (flymake-diagnostics)))

(defun ask (server method &rest more)
  (jsonrpc-request server method (append (eglot--TextDocumentPositionParams) more)
                   :timeout patience))

(defun scenario-prose ()
  (setq eglot-connect-timeout patience
        eglot-confirm-server-initiated-edits nil)
  (find-file (getenv "NOTES"))
  (text-mode)
  (let* ((server (apply #'eglot--connect (eglot--guess-contact)))
         hovered completed changed renamed formatted)
    (wait-until #'eglot-managed-p)
    (flymake-start)
    (goto-char (point-min))
    (search-forward "two")
    (setq hovered (ask server :textDocument/hover))
    (setq completed (let ((found (eglot-completion-at-point)))
                      (all-completions "thr" (nth 2 found))))
    ;; Edits behind an emoji and on a line of its own.
    (goto-char (point-min))
    (insert "\U0001F600 the the ")
    (search-forward "three")
    (insert " \U0001F600\nand and\n")
    (eglot--signal-textDocument/didChange)
    (wait-until (lambda () (= (length (problems)) 2)))
    (setq changed (problems))
    (goto-char (point-min))
    (search-forward "two")
    (eglot-rename "deux")
    (setq renamed (buffer-string))
    (goto-char (point-max))
    (insert "end  ")
    (eglot-format-buffer)
    (setq formatted (buffer-string))
    (set-buffer-modified-p nil)
    (let ((process (jsonrpc--process server)))
      ;; After `exit' jsonrpc.el kills the process at once; here it is to end by itself.
      (advice-add 'jsonrpc-shutdown :before
                  (lambda (&rest _) (wait-until (lambda () (not (process-live-p process))))))
      (eglot-shutdown server nil patience)
      (saw :hovered hovered :completed (vconcat completed) :changed (vconcat changed)
           :renamed renamed :formatted formatted
           :status (process-exit-status process)))))
